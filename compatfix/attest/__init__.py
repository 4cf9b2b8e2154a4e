"""What a green verdict was about, kept so that later runs can tell whether it still holds. Free of torch."""
