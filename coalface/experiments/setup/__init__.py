"""From a recipe to images, splits, pair lists and parties."""
