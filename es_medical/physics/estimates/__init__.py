"""Images that need no training, from which a network may start: `Operator.estimate` calls them."""
