"""The forecast engine: predicts usage series for every slot of the week. See README.md."""
