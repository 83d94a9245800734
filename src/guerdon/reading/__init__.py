"""What a stranger's file means: containers, splits, values, roles, layouts and chats."""
