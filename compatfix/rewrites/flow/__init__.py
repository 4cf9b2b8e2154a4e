"""What may reach what: a small points-to analysis over the files of a tree, so that rules ask about values, not names."""
