"""Parts of the vLLM engine: which vLLM it knows, weights by their names, images of requests."""
