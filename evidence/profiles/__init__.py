"""Making of the shipped profiles and launch costs, and their accuracy on devices that were left out."""
