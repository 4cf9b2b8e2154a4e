"""What may reach what: a small points-to analysis over the files of a tree, for rules that ask about values."""
