"""Models made from other models: `distill` makes a draft from a target."""
