"""`builtin:maze` as a class in Python, word for word, for TRL and for changes of your own."""

from typing import Literal

WAYS = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}


class Maze:
    def reset(self, maze, **row):
        """Takes a layout, a list of lines: S is the start, G the goal, # a wall."""
        self.maze, self.reached = maze, False
        self.at, self.goal = ((row, line.index(sign)) for sign in "SG" for row, line in enumerate(maze) if sign in line)
        return "\n" + self.look()

    def _open(self, direction):
        row, column = (here + by for here, by in zip(self.at, WAYS[direction]))
        inside = 0 <= row < len(self.maze) and 0 <= column < len(self.maze[row])
        return inside and self.maze[row][column] != "#"

    def look(self) -> str:
        """Looks around.

        Returns:
            Where you are, and which ways are open.
        """
        if self.at == self.goal:
            return "You are at the goal."
        (row, column), (to_row, to_column) = self.at, self.goal
        ways = ", ".join(way for way in WAYS if self._open(way)) or "none"
        here = f"You are at row {row + 1}, column {column + 1}."
        return f"{here} The goal is at row {to_row + 1}, column {to_column + 1}. Open ways: {ways}."

    def move(self, direction: Literal["north", "east", "south", "west"]) -> str:
        """Goes one step.

        Args:
            direction: Where to go.

        Returns:
            Where you are, and which ways are open.
        """
        if direction not in WAYS:
            raise ValueError("direction must be north, east, south or west")
        if not self._open(direction):
            return f"There is a wall to the {direction}. {self.look()}"
        self.at = tuple(here + by for here, by in zip(self.at, WAYS[direction]))
        self.reached = self.reached or self.at == self.goal
        return self.look()

    def get_reward(self):
        return float(self.reached)
