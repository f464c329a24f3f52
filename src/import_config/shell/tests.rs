//! Scripts, and their commands as a shell would run them.

use super::*;

/// A script that is run without an environment.
fn read(script: &str) -> Result<Script> {
    super::read(script, [])
}

fn commands(script: &str) -> Vec<Vec<String>> {
    let script = read(script).unwrap_or_else(|error| panic!("{script}: {error}"));
    script.commands.iter().map(|command| command.words.iter().map(ToString::to_string).collect()).collect()
}

/// The unknown parts of a script, in the order of the words.
fn told(script: &str) -> Vec<String> {
    let script = read(script).unwrap();
    let words = script.commands.iter().flat_map(|command| &command.words);
    words.filter_map(|word| word.unset().map(ToString::to_string)).collect()
}

#[test]
fn a_script_is_read_as_the_shell_reads_it() {
    for (script, expected) in [
        ("a  b\tc\n\n d", &[&["a", "b", "c"][..], &["d"]][..]),
        ("a \\\n  b # c\n# don't\ne", &[&["a", "b"], &["e"]]),
        (r#"a 'b "c' "d 'e" \"f\ g "" x#y"#, &[&["a", "b \"c", "d 'e", "\"f g", "", "x#y"]]),
        (r#"a "b\"\n\$c""#, &[&["a", "b\"\\n$c"]]),
        ("a; b && c | d &", &[&["a"], &["b"], &["c"], &["d"]]),
        ("a --n 2 2>&1 > log b", &[&["a", "--n", "2", "b"]]),
        ("X=1\nexport Y='p q'\na $X \"$Y\" $Y ${X}0 '$X'", &[&["a", "1", "p q", "p", "q", "10", "$X"]]),
        ("a $Z ${Z}/b ${Z:-c} $@ $", &[&["a", "$Z", "${Z}/b", "c", "$"]]),
        ("X=1 a $X", &[&["X=1", "a", "$X"]]),
        ("a --n x-$(date +%s) `g h`", &[&["a", "--n", "x-$(date +%s)", "$(g h)"]]),
        // Defaults within defaults, with and without quotes.
        ("B=/m\nA=${A:-\"${B}/x\"}\na $A \"$A\"", &[&["a", "/m/x", "/m/x"]]),
        ("B=/m; A=${A:-${B}/x y}\na $A", &[&["a", "/m/x", "y"]]),
        ("B=1; a ${A:-$B} ${C-d} \"${E:-\"f g\"}\"", &[&["a", "1", "d", "f g"]]),
        (": ${A:=x}\na $A ${A:+y} ${B:+z}", &[&["a", "x", "y"]]),
        ("A=\na ${A:-b} ${A-c}d", &[&["a", "b", "d"]]),
        // Arithmetic.
        (
            "A=$((1024 * 8))\na $A $((A / 3 + 1)) $(( (2 + 3) * 2 )) $((2 ** 10)) \"$((A>1?7:8))\"",
            &[&["a", "8192", "2731", "10", "1024", "7"]],
        ),
        ("N=4; ((N *= 2)); a $N $((N++)) $N", &[&["a", "8", "8", "9"]]),
        // Declarations, and appending.
        ("declare -r A=1; readonly B=2; local C=3; typeset -i D=4; export E\na $A$B$C$D", &[&["a", "1234"]]),
        ("A=x; A+=y; a $A", &[&["a", "xy"]]),
        (
            "A=(b 'c d'); A+=(e=f)\na \"${A[@]}\" ${A[1]} ${#A[@]} \"${A[*]}\" ${A}",
            &[&["a", "b", "c d", "e=f", "c", "d", "3", "b c d e=f", "b"]],
        ),
        ("A=()\na \"${A[@]}\" \"$@\" b", &[&["a", "b"]]),
        // Edited texts.
        (
            "P=/m/Qwen2.5-7B.tar\na ${P##*/} ${P%.*} ${P#/m/} ${P%%.*} ${#P} ${P:3:4} ${P/Qwen/Q}",
            &[&["a", "Qwen2.5-7B.tar", "/m/Qwen2.5-7B", "Qwen2.5-7B.tar", "/m/Qwen2", "17", "Qwen", "/m/Q2.5-7B.tar"]],
        ),
        ("A=Ab; a ${A^^} ${A,,}", &[&["a", "AB", "ab"]]),
        // Braces.
        ("a x{1..3} {b,c}d '{e,f}'", &[&["a", "x1", "x2", "x3", "bd", "cd", "{e,f}"]]),
        // Conditions, loops and functions.
        ("A=npu\nif [ \"$A\" = npu ]; then B=1; else B=2; fi\na $B", &[&["a", "1"]]),
        ("if [[ -z \"${A}\" && 3 -gt 2 ]]; then B=1; elif [ 1 -eq 1 ]; then B=2; fi\na $B", &[&["a", "1"]]),
        ("[ -n \"$A\" ] && B=1 || B=2\na $B", &[&["a", "2"]]),
        ("for x in 1 2; do B=\"$B$x\"; done\na $x", &[&["a", "2"]]),
        ("f() { local n=$1; shift; a $n \"$@\"; }\nf 1 'b c' d", &[&["a", "1", "b c", "d"]]),
        ("case qwen3 in qwen*) B=1;; *) B=2;; esac\na $B", &[&["a", "1"]]),
        ("if [ $# -lt 1 ]; then echo use; exit 1; fi\na", &[&["echo", "use"]]),
        ("cd /x || exit 1\na", &[&["cd", "/x"], &["a"]]),
        ("A=1; (A=2); { A=3; }; a $A", &[&["a", "3"]]),
        ("set -x\nset -euo pipefail\ncat > f <<EOF\na b=$C\nEOF\na", &[&["cat"], &["a"]]),
        ("A='b c'; eval \"a $A\"", &[&["a", "b", "c"]]),
        ("a $(echo 1 2) \"$(echo 3)\"", &[&["a", "1", "2", "3"]]),
        ("F=(a b c)\nIFS=,\nx \"${F[*]}\" \"${F[@]}\"", &[&["x", "a,b,c", "a", "b", "c"]]),
        ("F=(a b c)\nx $(IFS=,; echo \"${F[*]}\") \"${F[*]}\"", &[&["x", "a,b,c", "a b c"]]),
        (
            "j() { local IFS=\"$1\"; shift; echo \"$*\"; }\nx $(j , 1 2 3)\ny $(echo a b)",
            &[&["x", "1,2,3"], &["y", "a", "b"]],
        ),
        ("IFS=:\nP=a:b::c\nx $P \"$P\"", &[&["x", "a", "b", "", "c", "a:b::c"]]),
        ("srun -n 1 bash -c 'a \"b c\"'", &[&["a", "b c"]]),
        ("a b \\\r\n  c\r\nd\r\n", &[&["a", "b", "c"], &["d"]]),
        ("HOME=/h; a ~/x $HOME/y", &[&["a", "/h/x", "/h/y"]]),
        ("while [ $# -gt 0 ]; do A=$1; shift; done\na ${A:-b}", &[&["a", "b"]]),
    ] {
        assert_eq!(commands(script), expected, "{script}");
    }
}

#[test]
fn what_is_not_known_is_told_with_its_line() {
    for (script, words) in [
        ("a\nb $X", "line 2: `$X` is a shell variable that the script does not set"),
        ("b \\\n  c=$X", "line 2: `$X` is"),
        ("A=$HOME/x\n\nb $A", "line 1: `$HOME` is a shell variable"),
        ("A=x-$(date +%s)\nb \"$A\"", "line 1: `$(date +%s)` is what a command prints"),
        ("b $1", "line 1: `$1` is a shell variable"),
        ("if [ -f x ]; then N=1; else N=2; fi\nb $N", "line 1: `$N` is a shell variable that is set under a condition"),
        ("read N\nb $N", "line 1: `$N` is a shell variable that is read from elsewhere"),
        ("N=$((M * 2))\nb $N", "line 1: `$((M * 2))` cannot be computed"),
        ("M[a]=1; b ${M[a]}", "line 1: `${M[a]}` is not known here"),
        ("b ${!X}", "`${!X}` is not known here"),
        ("b ~/x", "line 1: `~` is a folder of the user's, a shell variable; put HOME=FOLDER on the first line"),
        ("b ~eve/x", "line 1: `~eve` may be a folder that only the shell knows; write the path out"),
        (
            "DEVICE=$(x)\n\nif [ \"$DEVICE\" = npu ]; then A=(c d); fi\nb \"${A[@]}\"",
            "as it goes by DEVICE (line 1: `$(x)` is what a command prints); write DEVICE=VALUE there",
        ),
        (
            "D=$(x)\ncase \"$D\" in npu) N=1;; *) N=2;; esac\nb $N",
            "line 2: `$N` is a shell variable that is set under a condition which is not known here, as it goes by D \
             (line 1",
        ),
        ("D=$(x)\nif [[ $D == gpu ]]; then N=1; else N=2; fi\nb $N", "as it goes by D (line 1: "),
        ("b $(if [ -f x ]; then echo 1; else echo 2; fi)", "is what a command prints"),
        ("b $(echo 1 > f)", "is what a command prints"),
    ] {
        let told = told(script);
        assert!(told.iter().any(|line| line.contains(words)), "{script}: {told:?}");
    }
    assert_eq!(told("b $((N *\n 2))"), ["line 2: `$((N *  2))` cannot be computed"], "in one line");
    assert_eq!(told("if [ -f x ]; then N=1; else N=1; fi\nb $N"), Vec::<String>::new(), "the same on both ways");
    let notes = read("source env.sh\neval \"$X\"\na").unwrap().notes;
    assert!(notes[0].contains("line 1: `source env.sh` is not read") && notes[1].contains("line 2:"), "{notes:?}");
}

#[test]
fn scripts_without_end_are_followed_so_far_only() {
    let deep = "(".repeat(100);
    assert!(read(&deep).unwrap_err().to_string().contains("brackets"));
    for script in [
        "f() { f; }\nf\n",
        "X=aaaaaaaaaaaaaaaa\nfor i in {1..900}; do X=\"$X$X\"; done\na $X\n",
        "for i in {1..900}; do for j in {1..900}; do for k in {1..900}; do a; done; done; done\n",
        "while true; do a; done\n",
        "a {99999999999999999999..1} $((99999999999999999999))\n",
    ] {
        assert!(read(script).is_ok(), "{script}");
    }
    assert!(read("if x; then").unwrap_err().to_string().contains("is no shell script"));
}

#[test]
fn a_missing_variable_that_passes_a_command_over_is_named() {
    let guesses = |script: &str| {
        let guesses = read(script).unwrap().guesses.into_iter();
        guesses.map(|guess| (guess.line, guess.name, guess.others[0].words[0].to_string())).collect::<Vec<_>>()
    };
    for (script, line, name) in [
        ("if [ \"$X\" = 1 ]; then a; else b; fi", 1, "X"),
        ("\nif [[ ${X} == 1 ]]; then a; fi\nb", 2, "X"),
        ("if [ 1 = 2 ]; then b; elif [ -n \"$X\" ]; then a; fi", 1, "X"),
        ("if [ -z \"$X\" ]; then b; else a; fi", 1, "X"),
        ("if [ -z \"$X\" ] && [ 1 = 1 ]; then b; else a; fi", 1, "X"),
        ("[ \"$X\" = 1 ] && a", 1, "X"),
        ("[ -z \"$X\" ] || a", 1, "X"),
        ("if [ -n \"${X+set}\" ]; then a; fi", 1, "X"),
        ("if [[ -v X ]]; then a; fi", 1, "X"),
        ("if [ ${#X} -gt 0 ]; then a; fi", 1, "X"),
        ("case \"$1\" in go) a ;; *) b ;; esac", 1, "1"),
        ("while [ \"$X\" = 1 ]; do a; done", 1, "X"),
        ("if [ -z \"$X\" ]; then exit 1; fi\na", 1, "X"),
        ("[ -n \"$X\" ] || { exit 1; }\na", 1, "X"),
        ("if [ \"$X\" = 1 ]; then if [ \"$Y\" = 1 ]; then a; fi; fi", 1, "X"),
    ] {
        assert_eq!(guesses(script), [(line, name.to_owned(), "a".to_owned())], "{script}");
    }
    for script in [
        "if [ \"${X:-2}\" = 1 ]; then a; fi",
        "if [ \"${X:-}\" = 1 ]; then a; fi",
        "if [ -z \"$X\" ]; then X=2; fi\na $X",
        "X=2; if [ \"$X\" = 1 ]; then a; fi",
        "b $X || a",
        "if [ $# -gt 0 ]; then a; fi",
    ] {
        assert!(guesses(script).is_empty(), "{script}");
    }
}

#[test]
fn a_variable_of_the_environment_has_its_value_and_is_told() {
    let environment = ["X=1", "Y=2", "HOME=/h", "IFS=,"].map(|set| set.split_once('=').unwrap());
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let script = "Y=3\nif [ \"$X\" = 1 ]; then a $X $Y \"b,c\"; else d; fi\ne ~";
    let script = super::read(script, environment).unwrap();
    let words = |command: &Command| command.words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let commands: Vec<_> = script.commands.iter().map(words).collect();
    assert_eq!(commands, [vec!["a", "1", "3", "b,c"], vec!["e", "~"]]);
    assert_eq!(script.notes, ["line 2: `$X` is taken from the environment"]);
    assert!(script.guesses.is_empty(), "{:?}", script.guesses);
}
