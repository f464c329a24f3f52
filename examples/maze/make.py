"""Makes the rows of this example: `python3 make.py DIR [--seed N]`. Needs Python's standard library alone.

warm.jsonl      conversations of a walker who goes a nearer way now and then, and else any way
train.jsonl     mazes for GRPO
held_out.jsonl  200 mazes that are in neither of them
"""

import argparse
import json
import pathlib
import random

from maze import WAYS, Maze

SIDE = 5
# Share of moves of the warm start that go nearer on purpose, of looks, and of walks that end before each move.
NEARER, LOOK, GIVE_UP = 0.2, 0.05, 0.05
MOVES = 8

WHERE = {"type": "string", "description": "Where you are, and which ways are open."}
DIRECTION = {"type": "string", "enum": list(WAYS), "description": "Where to go."}
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks around.",
            "parameters": {"type": "object", "properties": {}},
            "return": WHERE,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "move",
            "description": "Goes one step.",
            "parameters": {"type": "object", "properties": {"direction": DIRECTION}, "required": ["direction"]},
            "return": WHERE,
        },
    },
]


def layout(draw):
    """A maze in which each way that leads nearer can be followed to the goal."""
    while True:
        cells = [(row, column) for row in range(1, SIDE + 1) for column in range(1, SIDE + 1)]
        start, goal = draw.sample(cells, 2)
        if distance(start, goal) < 3:
            continue
        lines = [["#"] * (SIDE + 2) for _ in range(SIDE + 2)]
        for row, column in cells:
            lines[row][column] = "#" if draw.random() < 0.2 else " "
        lines[start[0]][start[1]], lines[goal[0]][goal[1]] = "S", "G"
        maze = ["".join(line) for line in lines]
        if followed(maze, start, goal):
            return maze


def distance(here, there):
    return abs(here[0] - there[0]) + abs(here[1] - there[1])


def nearer(maze, here, goal):
    """The open ways that lead nearer to the goal, with their cells."""
    ways = {way: (here[0] + by[0], here[1] + by[1]) for way, by in WAYS.items()}
    return {
        way: cell
        for way, cell in ways.items()
        if maze[cell[0]][cell[1]] != "#" and distance(cell, goal) < distance(here, goal)
    }


def followed(maze, here, goal):
    """Whether every walk over nearer ways ends at the goal."""
    ways = nearer(maze, here, goal)
    return here == goal or (bool(ways) and all(followed(maze, cell, goal) for cell in ways.values()))


def call(name, **arguments):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


def shown(maze, draw):
    """A conversation to imitate."""
    walker = Maze()
    text = question() + walker.reset(maze)
    messages = []
    for _ in range(MOVES):
        if walker.reached or draw.random() < GIVE_UP:
            break
        if draw.random() < LOOK:
            messages += [call("look"), {"role": "tool", "name": "look", "content": walker.look()}]
            continue
        on_purpose = draw.random() < NEARER
        ways = [*nearer(maze, walker.at, walker.goal)] if on_purpose else []
        way = draw.choice(ways or [*WAYS])
        messages += [call("move", direction=way), {"role": "tool", "name": "move", "content": walker.move(way)}]
    done = {"role": "assistant", "content": "Done."}
    return {"prompt": [{"role": "user", "content": text}], "completion": [*messages, done], "tools": SCHEMAS}


def question():
    return "Reach the goal."


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--warm", type=int, default=12_000, help="conversations of the warm start")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    draw = random.Random(args.seed)
    mazes = {tuple(maze): None for maze in (layout(draw) for _ in range(args.warm + 4200))}
    mazes = [list(maze) for maze in mazes]
    rows = [{"prompt": [{"role": "user", "content": question()}], "maze": maze} for maze in mazes[:4200]]
    write(args.dir / "held_out.jsonl", rows[:200])
    write(args.dir / "train.jsonl", rows[200:])
    write(args.dir / "warm.jsonl", [shown(maze, draw) for maze in mazes[4200:]])


if __name__ == "__main__":
    main()
