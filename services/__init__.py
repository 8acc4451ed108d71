"""The five services; each is `python -m services.NAME`. They never import each other."""
