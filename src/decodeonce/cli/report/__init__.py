"""`prep report`: a store on one page that needs nothing but itself."""
