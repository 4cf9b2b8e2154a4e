"""What lies in a model directory: headers and indices, never a tensor's bytes. Free of torch."""
