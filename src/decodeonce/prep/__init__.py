"""From pictures to a store. Each room below says in its first sentence what it is for; none needs torch."""
