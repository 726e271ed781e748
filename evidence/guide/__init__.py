"""Pictures of docs/how_it_works.md: the method on the sample network of the IOS thesis, drawn from what is computed."""
