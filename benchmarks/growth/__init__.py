"""How the cost of a step grows: what is measured, what the machine allows, and how it is drawn."""
