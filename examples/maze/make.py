"""Makes the rows of this example: `python3 make.py DIR [--seed N]`. Needs Python's standard library alone.

warm.jsonl      conversations of a wanderer, who mostly takes the first way that is open
train.jsonl     mazes for GRPO
held_out.jsonl  200 mazes that are in neither of them
"""

import argparse
import json
import pathlib
import random

SIDE = 4
WAYS = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
# Of 100 steps of the wanderer: the first open way, and one that leads to the goal. The others are any open way.
FIRST, BEST = 50, 30
# Calls of the longest conversation, as in run.toml.
MOST = 6
PROMPT = [{"role": "user", "content": "Reach the goal."}]


def schema(name, description, properties):
    parameters = {"type": "object", "properties": properties}
    if properties:
        parameters["required"] = list(properties)
    returned = {"type": "string", "description": "Where you are, and which ways are open."}
    function = {"name": name, "description": description, "parameters": parameters, "return": returned}
    return {"type": "function", "function": function}


DIRECTION = {"type": "string", "enum": list(WAYS), "description": "Where to go."}
SCHEMAS = [schema("look", "Looks around.", {}), schema("move", "Goes one step.", {"direction": DIRECTION})]


class Maze:
    """A layout, with the steps from every open cell to the goal."""

    def __init__(self, draw):
        cells = [(row, column) for row in range(SIDE) for column in range(SIDE)]
        self.walls = {cell for cell in cells if draw.random() < 0.2}
        self.start, self.goal = draw.sample(cells, 2)
        self.walls -= {self.start, self.goal}
        self.steps = {self.goal: 0}
        edge = [self.goal]
        while edge:
            cell = edge.pop(0)
            for further in (self.beside(cell, way) for way in WAYS):
                if self.is_open(further) and further not in self.steps:
                    self.steps[further] = self.steps[cell] + 1
                    edge.append(further)

    def beside(self, cell, way):
        return cell[0] + WAYS[way][0], cell[1] + WAYS[way][1]

    def is_open(self, cell):
        return all(0 <= place < SIDE for place in cell) and cell not in self.walls

    def open(self, cell):
        return [way for way in WAYS if self.is_open(self.beside(cell, way))]

    def lines(self):
        signs = {**dict.fromkeys(self.walls, "#"), self.start: "S", self.goal: "G"}
        return ["".join(signs.get((row, column), ".") for column in range(SIDE)) for row in range(SIDE)]

    def look(self, cell):
        """What `builtin:maze` says there."""
        if cell == self.goal:
            return "You are at the goal."
        at, goal = (f"row {place[0] + 1}, column {place[1] + 1}" for place in (cell, self.goal))
        return f"You are at {at}. The goal is at {goal}. Open ways: {', '.join(self.open(cell))}."


def way(maze, cell, draw):
    """The wanderer's next step."""
    case, ways = draw.randrange(100), maze.open(cell)
    if case < FIRST:
        return ways[0]
    best = [way for way in ways if maze.steps[maze.beside(cell, way)] < maze.steps[cell]]
    return draw.choice(best if case < FIRST + BEST else ways)


def wandered(maze, draw):
    """A conversation to imitate. It ends at the goal, or with a call beyond the last one that gets a reply."""
    cell, said = maze.start, []
    for calls in range(MOST + 1):
        if cell == maze.goal:
            said.append({"role": "assistant", "content": "Done."})
            break
        step = way(maze, cell, draw)
        function = {"name": "move", "arguments": {"direction": step}}
        said.append({"role": "assistant", "tool_calls": [{"type": "function", "function": function}]})
        if calls < MOST:
            cell = maze.beside(cell, step)
            said.append({"role": "tool", "name": "move", "content": maze.look(cell)})
    prompt = [{"role": "user", "content": f"{PROMPT[0]['content']}\n{maze.look(maze.start)}"}]
    return {"prompt": prompt, "tools": SCHEMAS, "completion": said}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--warm", type=int, default=4_000, help="conversations of the warm start")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    draw, known, warm, asked = random.Random(args.seed), set(), [], []
    while len(warm) < args.warm or len(asked) < 2_200:
        maze = Maze(draw)
        key = tuple(maze.lines())
        if not 2 <= maze.steps.get(maze.start, 0) <= 4 or key in known:
            continue
        known.add(key)
        if len(asked) < 2_200:
            asked.append({"prompt": PROMPT, "maze": maze.lines()})
        else:
            warm.append(wandered(maze, draw))
    for name, rows in (("warm", warm), ("held_out", asked[:200]), ("train", asked[200:])):
        write(args.dir / f"{name}.jsonl", rows)


if __name__ == "__main__":
    main()
