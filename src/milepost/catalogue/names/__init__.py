"""What methods are called: how people spell them, what else they are known as, and a line of Chinese for each."""
