"""The forecast engine: from usage series to what each will be in every slot of the week. See README.md."""
