"""The trained models that come with the package, each a Hugging Face folder with a model card."""
