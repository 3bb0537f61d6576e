"""Workers in processes of their own. Door: `parent`."""
