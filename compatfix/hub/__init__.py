"""Models named by hub id: everything but the weights is fetched, into directories that read like local ones.

The front alone comes here, before a worker starts; huggingface_hub is imported only once a hub id is really given.
"""
