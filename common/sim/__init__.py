"""A whole cluster under a virtual clock: the services' own cores, with a cost model where the GPU would be."""
