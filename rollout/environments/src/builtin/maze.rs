//! A maze of text, for conversations of several turns.

use std::collections::VecDeque;

use serde_json::{Map, Value, json};

use super::{Arguments, Class, answered, mapping, nothing_but, text};
use crate::{
    Failure,
    environment::{BoxFuture, Environment, Opening, Step, ToolCall, Turn},
    reply,
};

/// `builtin:maze`: 1 at the end if the goal has been reached, else 0.
pub const CLASS: Class = Class { entry: "maze", schemas, by_turn: false, make: || Box::new(Maze::default()) };

/// `builtin:shaped_maze`: for each turn, the share of the shortest way that it has led on. The rewards of a
/// conversation that ends at the goal add up to 1.
pub const SHAPED: Class = Class {
    entry: "shaped_maze",
    schemas,
    by_turn: true,
    make: || Box::new(Maze { by_turn: true, ..Maze::default() }),
};

/// The column with the layout: lines of `#` (wall), `S` (start), `G` (goal), anything else being open.
const COLUMN: &str = "maze";

/// Longest side of a layout.
const LARGEST: usize = 256;

/// The tools.
const LOOK: &str = "look";
const MOVE: &str = "move";

/// Directions with the rows and columns that they lead on.
const DIRECTIONS: [(&str, isize, isize); 4] = [("north", -1, 0), ("east", 0, 1), ("south", 1, 0), ("west", 0, -1)];

fn schemas() -> Vec<Value> {
    let names = DIRECTIONS.map(|(name, ..)| name);
    let returned = json!({"type": "string", "description": "Where you are, and which ways are open."});
    let look = json!({"type": "function", "function": {
        "name": LOOK,
        "description": "Looks around.",
        "parameters": {"type": "object", "properties": {}},
        "return": returned,
    }});
    let direction = json!({"type": "string", "enum": names, "description": "Where to go."});
    let step = json!({"type": "function", "function": {
        "name": MOVE,
        "description": "Goes one step.",
        "parameters": {"type": "object", "properties": {"direction": direction}, "required": ["direction"]},
        "return": returned,
    }});
    vec![look, step]
}

/// A maze with somebody in it.
#[derive(Debug, Default)]
struct Maze {
    /// Whether each cell of each row is open. Rows may have different lengths.
    open: Vec<Vec<bool>>,
    at: (usize, usize),
    goal: (usize, usize),
    /// Whether the goal has been reached. It counts even if the way went on.
    reached: bool,
    /// Whether each turn has a reward.
    by_turn: bool,
    /// Steps from the start to the goal on the shortest way.
    way: usize,
}

impl Maze {
    /// The maze of a row of the dataset.
    fn of(row: &Map<String, Value>) -> Result<Self, String> {
        let lines: Option<Vec<&str>> = match row.get(COLUMN) {
            Some(Value::String(text)) => Some(text.lines().collect()),
            Some(Value::Array(lines)) => lines.iter().map(Value::as_str).collect(),
            _ => None,
        };
        let lines = lines.ok_or_else(|| format!("the row has no column `{COLUMN}` with a text, or a list of lines"))?;
        if lines.len() > LARGEST || lines.iter().any(|line| line.chars().count() > LARGEST) {
            return Err(format!("the column `{COLUMN}` has more than {LARGEST} lines, or a longer line"));
        }
        let place = |sign: char| {
            let of_line = |line: &&str| line.chars().position(|c| c == sign);
            let mut found = lines.iter().enumerate().filter_map(|(row, line)| Some((row, of_line(line)?)));
            let first = found.next();
            first.ok_or_else(|| format!("the column `{COLUMN}` has no `{sign}`: S is the start, G the goal, # a wall"))
        };
        let (at, goal) = (place('S')?, place('G')?);
        let open = lines.iter().map(|line| line.chars().map(|c| c != '#').collect()).collect();
        Ok(Self { open, at, goal, ..Self::default() })
    }

    /// The same maze with a reward for each turn, which needs a way.
    fn shaped(self) -> Result<Self, String> {
        let way = self.distance().ok_or_else(|| format!("the column `{COLUMN}` has no way from `S` to `G`"))?;
        Ok(Self { by_turn: true, way, ..self })
    }

    /// Steps to the goal on the shortest way, where there is one.
    fn distance(&self) -> Option<usize> {
        let mut seen: Vec<Vec<bool>> = self.open.iter().map(|row| vec![false; row.len()]).collect();
        let mut queue = VecDeque::from([(self.at, 0)]);
        while let Some((at, steps)) = queue.pop_front() {
            if at == self.goal {
                return Some(steps);
            }
            if !std::mem::replace(&mut seen[at.0][at.1], true) {
                let ways = DIRECTIONS.iter().filter_map(|(_, rows, columns)| self.beside(at, *rows, *columns));
                queue.extend(ways.map(|next| (next, steps + 1)));
            }
        }
        None
    }

    /// The share of the way that has been made good since the goal was so many steps off.
    fn progress(&self, before: usize) -> f64 {
        let after = self.distance().unwrap_or(before);
        (before as f64 - after as f64) / self.way.max(1) as f64
    }

    /// The cell next to where one stands, if it is open.
    fn next(&self, rows: isize, columns: isize) -> Option<(usize, usize)> {
        self.beside(self.at, rows, columns)
    }

    fn beside(&self, at: (usize, usize), rows: isize, columns: isize) -> Option<(usize, usize)> {
        let (row, column) = (at.0.checked_add_signed(rows)?, at.1.checked_add_signed(columns)?);
        self.open.get(row)?.get(column)?.then_some((row, column))
    }

    fn look(&self) -> String {
        if self.at == self.goal {
            return "You are at the goal.".to_owned();
        }
        let open = DIRECTIONS.iter().filter(|(_, rows, columns)| self.next(*rows, *columns).is_some());
        let open: Vec<&str> = open.map(|(name, ..)| *name).collect();
        let open = if open.is_empty() { "none".to_owned() } else { open.join(", ") };
        let ((row, column), (to_row, to_column)) = (self.at, self.goal);
        format!(
            "You are at row {}, column {}. The goal is at row {}, column {}. Open ways: {open}.",
            row + 1,
            column + 1,
            to_row + 1,
            to_column + 1
        )
    }

    fn go(&mut self, direction: &str) -> Result<String, String> {
        let found = DIRECTIONS.iter().find(|(name, ..)| *name == direction);
        let (name, rows, columns) = found.ok_or("direction must be north, east, south or west")?;
        let Some(next) = self.next(*rows, *columns) else {
            return Ok(format!("There is a wall to the {name}. {}", self.look()));
        };
        self.at = next;
        self.reached |= self.at == self.goal;
        Ok(self.look())
    }

    fn call(&mut self, name: &str, arguments: &Arguments) -> Result<String, String> {
        if name == LOOK {
            nothing_but("Maze.look", None, arguments)?;
            return Ok(self.look());
        }
        let direction = text("Maze.move", "direction", arguments)?.to_owned();
        self.go(&direction)
    }
}

impl Environment for Maze {
    fn init(&mut self, row: &Map<String, Value>) -> BoxFuture<'_, Result<Opening, Failure>> {
        let made = Self::of(row);
        let made = if self.by_turn { made.and_then(Self::shaped) } else { made };
        Box::pin(async move {
            let broken = |reason| Failure::Broken { environment: "builtin:maze".to_owned(), reason, traceback: None };
            *self = made.map_err(broken)?;
            Ok(Opening { text: Some(format!("\n{}", self.look())) })
        })
    }

    fn step(&mut self, turn: Turn) -> BoxFuture<'_, Result<Step, Failure>> {
        let before = self.distance().filter(|_| self.by_turn);
        let answer = |call: &ToolCall| match call.name.as_str() {
            name @ (LOOK | MOVE) => {
                let result = mapping(&format!("Maze.{name}"), &call.arguments);
                answered(name, result.and_then(|arguments| self.call(name, arguments)))
            }
            name => reply::unknown(name),
        };
        let replies = turn.calls.iter().map(answer).collect();
        let reward = before.map(|before| self.progress(before));
        Box::pin(async move { Ok(Step { replies, reward, done: false }) })
    }

    fn score(&mut self) -> BoxFuture<'_, Result<Option<f64>, Failure>> {
        // Rewards of turns add up to that of the way. Without a turn their sum is 0, and that is earned too.
        let reward = f64::from(u8::from(self.reached && !self.by_turn));
        Box::pin(async move { Ok(Some(reward)) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LAYOUT: &str = "#####\n#S.##\n##.G#\n#####";

    fn maze(layout: impl Into<Value>) -> Result<Maze, String> {
        Maze::of(json!({COLUMN: layout.into()}).as_object().unwrap())
    }

    fn call(maze: &mut Maze, direction: &str) -> String {
        maze.call(MOVE, json!({"direction": direction}).as_object().unwrap()).unwrap()
    }

    #[test]
    fn a_way_leads_to_the_goal_and_walls_stop() {
        let mut maze = maze(LAYOUT).unwrap();
        let start = "You are at row 2, column 2. The goal is at row 3, column 4. Open ways: east.";
        assert_eq!(maze.look(), start);
        assert_eq!(call(&mut maze, "north"), format!("There is a wall to the north. {start}"));
        for direction in ["east", "south"] {
            call(&mut maze, direction);
            assert!(!maze.reached);
        }
        assert_eq!(call(&mut maze, "east"), "You are at the goal.");
        call(&mut maze, "west");
        assert!(maze.reached && maze.at != maze.goal, "it counts that the goal was reached");
    }

    #[tokio::test]
    async fn a_shaped_maze_rewards_each_turn_by_the_share_of_the_way() {
        let mut maze = (SHAPED.make)();
        maze.init(json!({COLUMN: LAYOUT}).as_object().unwrap()).await.unwrap();
        let mut rewards = Vec::new();
        for directions in [&["east"][..], &["west"], &["west"], &["east", "south"], &["east"]] {
            let call = |direction: &&str| ToolCall { name: MOVE.into(), arguments: json!({"direction": direction}) };
            let turn = Turn { calls: directions.iter().map(call).collect(), text: String::new() };
            rewards.push(maze.step(turn).await.unwrap().reward.unwrap());
        }
        let third = 1.0 / 3.0;
        let expected = [third, -third, 0.0, 2.0 * third, third];
        assert!(rewards.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{rewards:?}");
        assert_eq!(maze.score().await, Ok(Some(0.0)), "nothing is counted twice, and who never moved has earned 0");
        let shut = maze.init(json!({COLUMN: "S#G"}).as_object().unwrap()).await.unwrap_err();
        assert!(shut.to_string().contains("no way from `S` to `G`"), "{shut}");
    }

    /// A warm start shows the model the tools and the words that training gives it.
    #[test]
    fn the_warm_start_of_the_example_has_the_same_tools_and_words() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/maze");
        let script = "import json, make, random\n\
                      maze = make.Maze(random.Random(3))\n\
                      said = [maze.look(maze.start), maze.look(maze.goal)]\n\
                      print(json.dumps([maze.lines(), make.SCHEMAS, said]))";
        let mut python = std::process::Command::new("python3");
        let output = python.args(["-B", "-c", script]).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let [lines, tools, said]: [Value; 3] = serde_json::from_slice(&output.stdout).unwrap();
        let mut maze = maze(lines).unwrap();
        let start = maze.look();
        maze.at = maze.goal;
        assert_eq!((tools, said), (json!(schemas()), json!([start, maze.look()])));
    }

    #[test]
    fn layouts_are_texts_or_lines_and_need_a_start_and_a_goal() {
        let lines: Vec<&str> = LAYOUT.lines().collect();
        assert_eq!(maze(lines).unwrap().open, maze(LAYOUT).unwrap().open);
        for (layout, reason) in [
            (json!("#S#"), "has no `G`"),
            (json!("G"), "has no `S`"),
            (json!(5), "no column `maze`"),
            (json!(["SG", 5]), "no column `maze`"),
            (json!("S".repeat(300)), "more than 256"),
        ] {
            let error = maze(layout.clone()).unwrap_err();
            assert!(error.contains(reason), "{layout}: {error}");
        }
    }

    #[test]
    fn wrong_calls_are_refused() {
        let mut maze = maze("SG").unwrap();
        let mut refused = |name: &str, arguments: Value| maze.call(name, arguments.as_object().unwrap()).unwrap_err();
        assert_eq!(refused(MOVE, json!({})), "Maze.move() missing 1 required positional argument: 'direction'");
        assert_eq!(refused(LOOK, json!({"far": true})), "Maze.look() got an unexpected keyword argument 'far'");
        assert_eq!(refused(MOVE, json!({"direction": "up"})), "direction must be north, east, south or west");
    }

    proptest! {
        #[test]
        fn nobody_leaves_the_maze_or_stands_in_a_wall(
            layout in "([#. ]{0,6}\n){0,4}S[#. ]{0,5}G?\n([#. ]{0,6}\n){0,3}G",
            steps in proptest::collection::vec(0_usize..4, 0..40),
        ) {
            let mut maze = maze(layout).unwrap();
            for step in steps {
                call(&mut maze, DIRECTIONS[step].0);
                prop_assert!(maze.open[maze.at.0][maze.at.1]);
            }
        }
    }
}
