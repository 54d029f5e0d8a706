"""What every layer above stands on: errors, settings, element types."""
