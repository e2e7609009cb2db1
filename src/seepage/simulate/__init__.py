"""Who holds what, and training: the model of the round that is audited."""
