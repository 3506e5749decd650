"""veRL and vLLM on a machine without a GPU: a veRL platform, the two workers that need it and a vLLM extension."""
