"""The life of one pod: scheduling cycle, failure, waiting at Permit, bind outcome. Synchronous; never awaits."""
