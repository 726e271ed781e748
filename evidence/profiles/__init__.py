"""How the shipped profiles and launch costs are made, and what each is worth on devices that were left out."""
