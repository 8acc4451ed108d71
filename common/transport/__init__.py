"""KV data plane: moves the pages of one prefilled canvas from the worker that holds them to the one that decodes."""
