//! The answer checker on tables, on GSM8K and on hostile texts.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    Verdict::{self, Different, Equal, Unsure},
    accuracy, compare, final_answer, reasoning_accuracy,
};

/// Both ways round: who is given and who is expected does not matter.
fn check(verdict: Verdict, pairs: &[(&str, &str)]) {
    let wrong: Vec<String> = pairs
        .iter()
        .flat_map(|&(a, b)| [(a, b), (b, a)])
        .filter(|(a, b)| compare(a, b) != verdict)
        .map(|(a, b)| format!("`{a}` and `{b}`: {:?}", compare(a, b)))
        .collect();
    assert!(wrong.is_empty(), "not {verdict:?}:\n{}", wrong.join("\n"));
}

#[test]
fn equal_numbers_may_be_written_in_many_ways() {
    check(
        Equal,
        &[
            ("72", "72"),
            ("72", "72.0"),
            ("72", "72."),
            ("72", "+72"),
            ("72", "072"),
            ("-5", "−5"),
            ("-5", "- 5"),
            (".5", "0.5"),
            ("0.50", "0.5"),
            ("1,234", "1234"),
            ("1{,}234", "1234"),
            (r"1,\!234", "1234"),
            (r"1\,234", "1234"),
            ("1,234,567.50", "1234567.5"),
            ("$18", "18"),
            (r"\$18.00", "18"),
            ("$1,200", "1200"),
            ("£5", "5"),
            (r"$\frac{1}{2}$", "0.5"),
            (r"\(\frac{1}{2}\)", "1/2"),
            (r"\frac{1}{2}", "0.5"),
            (r"\dfrac{3}{6}", "1/2"),
            (r"\tfrac12", "1/2"),
            (r"\frac12", "0.5"),
            (r"\frac{1}2", "0.5"),
            (r"-\frac{1}{2}", r"\frac{-1}{2}"),
            (r"-\frac{1}{2}", r"\frac{1}{-2}"),
            (r"\frac{3}{4}", "75%"),
            ("6/8", "3/4"),
            (r"3\frac{1}{2}", "3.5"),
            (r"3\frac12", "7/2"),
            ("3 1/2", "3.5"),
            (r"-3\frac{1}{2}", "-3.5"),
            ("1e3", "1000"),
            ("1.5E3", "1500"),
            ("2.5E-2", "0.025"),
            (r"1.5 \times 10^3", "1500"),
            (r"1.5 \cdot 10^{-2}", "0.015"),
            ("3 × 10^8", "300000000"),
            ("2^10", "1024"),
            ("2^{10}", "1024"),
            ("2**3", "8"),
            ("2^{-1}", "0.5"),
            ("(-2)^2", "4"),
            ("-2^2", "-4"),
            ("(3+4)*2", "14"),
            ("10 - 3 - 2", "5"),
            (r"12 \div 4", "3"),
            ("50%", "50"),
            (r"50\%", "0.5"),
            ("50 percent", "50%"),
            ("5000", "5,000"),
            ("100000000000000000000000", "1e23"),
            ("(5)", "5"),
            ("{5}", "5"),
            (r"\left(5\right)", "5"),
            ("x = 5", "5"),
            ("x=5", "x = 5.0"),
            ("f(x) = 2x", "2x"),
            (r"x \in [1, 2]", "[1,2]"),
        ],
    );
}

#[test]
fn roots_constants_and_letters_have_a_normal_form() {
    check(
        Equal,
        &[
            (r"\sqrt{16}", "4"),
            (r"\sqrt{\frac{1}{4}}", "0.5"),
            (r"\sqrt{12}", r"2\sqrt{3}"),
            (r"\sqrt2", r"\sqrt{2}"),
            ("√2", r"\sqrt{2}"),
            ("sqrt(8)", r"2\sqrt{2}"),
            (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
            (r"\frac{2}{\sqrt{3}-1}", r"\sqrt{3}+1"),
            (r"\sqrt{2}\cdot\sqrt{6}", r"2\sqrt{3}"),
            (r"2^{1/2}", r"\sqrt{2}"),
            (r"\sqrt[3]{8}", "2"),
            (r"\sqrt[3]{-27}", "-3"),
            (r"\sqrt[3]{2}", "2^{1/3}"),
            (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
            (r"\sqrt{-4}", "2i"),
            ("(1+i)^2", "2i"),
            ("3+4i", "4i + 3"),
            (r"2\pi", r"\pi \cdot 2"),
            ("2π", r"2\pi"),
            ("2pi", r"2\pi"),
            (r"\frac{\pi}{2}", r"0.5\pi"),
            (r"\pi r^2", r"r^2\pi"),
            ("e^2", r"e \cdot e"),
            ("x^2+1", "1 + x^2"),
            ("(x+1)^2", "x^2+2x+1"),
            ("(x-1)(x+1)", "x^2-1"),
            ("2(x+y)", "2x + 2y"),
            ("2xy", "2yx"),
            (r"\frac{x}{2}", "x/2"),
            (r"\frac{x^2-1}{x-1}", "x+1"),
            (r"\frac{1}{x}+\frac{1}{y}", r"\frac{x+y}{xy}"),
            (r"\frac{2x}{4}", "0.5x"),
            ("y = 2x + 3", "2x+3"),
            (r"2\theta", r"\theta+\theta"),
            ("A", r"\text{A}"),
            ("(B)", r"\text{(B)}"),
        ],
    );
}

#[test]
fn several_values_are_compared_one_by_one() {
    check(
        Equal,
        &[
            ("(1, 2)", "(1,2)"),
            (r"\left( \frac{1}{2}, 3 \right)", "(0.5, 3)"),
            ("(1, (2, 3))", "(1,(2,3))"),
            ("1, 2", "1,2"),
            ("1, 2", "(1, 2)"),
            ("1, 2", "2, 1"),
            ("x > 5", "5 < x"),
            (r"1 \text{ and } 2", "1, 2"),
            ("1 or 2", "1,2"),
            ("1, 2, and 3", "1,2,3"),
            (r"x = 1 \text{ or } x = 2", "1, 2"),
            (r"\{1, 2\}", r"\{2, 1\}"),
            (r"\{1, 2\}", r"\left\{ 2, 1, 1 \right\}"),
            ("{1, 2}", r"\{1,2\}"),
            (r"\{1, 2\}", "2, 1"),
            (r"\{5\}", "5"),
            (r"\{(1,2),(3,4)\}", r"\{(3,4),(1,2)\}"),
            ("[0, 1)", r"[0, \frac{2}{2})"),
            (r"(-\infty, 3]", r"\left(-\infty,3\right]"),
            ("(-∞, 3]", r"(-\infty,3]"),
            (r"(0,1) \cup (2,3)", r"(2,3) \cup (0,1)"),
            (r"\infty", r"+\infty"),
        ],
    );
}

#[test]
fn units_and_words_may_stand_beside_a_number() {
    check(
        Equal,
        &[
            ("5 cm", "5"),
            (r"5\text{ cm}", "5 centimeters"),
            (r"5\ \mathrm{cm}^2", r"5 \text{ square cm}"),
            (r"90^\circ", "90"),
            (r"90^{\circ}", "90 degrees"),
            ("90°", r"90^\circ"),
            ("18 dollars", "$18"),
            ("60 miles per hour", "60 miles/hour"),
            ("20 ^\\circ C", r"20^{\circ}\text{C}"),
            (r"\text{East}", "east"),
            (r"\textbf{yes}", "Yes"),
            (r"\frac{1}{2}\text{ hours}", "0.5 hours"),
        ],
    );
}

#[test]
fn different_answers_are_different() {
    check(
        Different,
        &[
            ("71", "72"),
            ("72", "-72"),
            ("7.2", "72"),
            ("1,234", "1235"),
            ("0.33", "0.333"),
            ("1/2", "1/3"),
            (r"\frac{1}{2}", "0.51"),
            ("3 1/2", "3.25"),
            ("1e3", "100"),
            ("50%", "40"),
            ("50%", "0.4"),
            ("50%", "51%"),
            ("2^10", "1023"),
            (r"\sqrt{2}", r"\sqrt{3}"),
            (r"\sqrt{2}", "1"),
            (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5}"),
            (r"\sqrt[3]{2}", r"\sqrt[3]{3}"),
            (r"2\pi", r"3\pi"),
            (r"\pi", "3"),
            ("x", "y"),
            ("x+1", "x+2"),
            ("x^2", "2x"),
            ("12 m^2", "13"),
            ("12x^2", "12x"),
            ("12/m^2", "12"),
            ("(x+1)^2", "x^2+1"),
            (r"\frac{1}{x+1}", r"\frac{1}{x-1}"),
            ("3+4i", "3-4i"),
            ("A", "B"),
            ("(1, 2)", "(2, 1)"),
            ("(1, 2)", "(1, 2, 3)"),
            ("1, 2", "1, 3"),
            ("5", "(5, 6)"),
            ("5", "5, 6"),
            (r"\{1, 2\}", r"\{1, 3\}"),
            (r"\{1, 2\}", r"\{1\}"),
            ("[0, 1]", "[0, 2]"),
            (r"(-\infty, 3]", r"(-\infty, 4]"),
            (r"\infty", r"-\infty"),
            (r"\infty", "5"),
            ("x = 5", "6"),
            ("0.34", "1/3"),
            ("68%", "2/3"),
            ("5 cm", "7 cm"),
            ("5 cm", "7"),
            (r"90^\circ", "80"),
            ("$18", "19"),
        ],
    );
}

#[test]
fn what_cannot_be_told_is_not_guessed() {
    check(
        Unsure,
        &[
            ("East", "West"),
            ("yes", "true"),
            ("yes", "1"),
            ("5 cm", "5 m"),
            ("100 cm", "1 m"),
            ("100 cm", "1"),
            ("50 cents", "$0.50"),
            ("2 hours", "120"),
            ("5m", "5"),
            ("12 m^2", "12"),
            ("12", "12 m^{2}"),
            ("9.8", "9.8 m/s^2"),
            ("9.8 m / s ^ 2", "9.8"),
            ("9.8 m s^{-2}", "9.8"),
            ("2 N*m^2", "2"),
            ("3 m^4", "3"),
            (r"25\pi m^2", r"25\pi"),
            (r"\frac{1}{2} m^2", "1/2"),
            (r"5\sqrt{3} m^2", r"5\sqrt{3}"),
            (r"1.5 \times 10^3 m^2", "1500"),
            ("5 zorks", "5"),
            ("the answer is 5", "5"),
            ("0.333", "1/3"),
            ("3.14", r"\pi"),
            ("1.41", r"\sqrt{2}"),
            ("67%", "2/3"),
            ("66.6%", "2/3"),
            ("-0.33", "-1/3"),
            ("[1, 2]", "(1, 2)"),
            ("(1,234)", "1234"),
            ("1,234", "1, 234"),
            ("x = 5", "y = 5"),
            ("2x + 3y = 5", "3y + 2x = 5"),
            (r"x \le 5", "5"),
            (r"\pm 2", "2"),
            ("|x|", "x"),
            ("5!", "120"),
            (r"\sin x", "x"),
            (r"\log_2 8", "3"),
            (r"\binom{5}{2}", "10"),
            ("2^x", "x"),
            ("2^3^2", "512"),
            ("1/2x", "x/2"),
            ("2 3", "23"),
            ("2e-3", "0.002"),
            ("1/0", "1"),
            (r"\frac{1}{2", "0.5"),
            ("(1", "1"),
            ("1)", "1"),
            ("", "1"),
            ("..", "1"),
            (r"\sqrt{x^2}", "x"),
            (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"),
            ("0.\\overline{3}", "1/3"),
            ("12:30", "12"),
            ("101_2", "5"),
            ("(x+1)^{60}", "(1+x)^{60} + 0"),
            ("10^{50}", "10^{50} + 0"),
        ],
    );
    // The same text is the same answer, whether it can be read or not.
    check(Equal, &[("x > 5", "x>5"), (r"\sin x", r"\sin  x"), ("5 zorks", "5  zorks")]);
}

#[test]
fn the_final_answer_is_boxed_or_tagged_or_marked() {
    for (completion, answer) in [
        (r"\boxed{1} then \boxed{2}", Some("2")),
        (r"<answer>3</answer> but \boxed{\frac{1}{2}}", Some(r"\frac{1}{2}")),
        ("<answer>3</answer>\n#### 4", Some("3")),
        ("#### 4\nbye", Some("4")),
        ("#### 4\n#### 5", Some("5")),
        (r"\boxed{", None),
        (r"\boxed{}", None),
        ("5", None),
        ("", None),
    ] {
        assert_eq!(final_answer(completion), answer, "{completion}");
    }
    assert_eq!(accuracy(r"so \boxed{\frac12}", "0.5"), Some(1.0));
    assert_eq!(accuracy(r"so \boxed{\frac12}", r"thus \boxed{\frac{1}{3}}"), Some(0.0));
    assert_eq!(accuracy("<answer>18</answer>", "6 * 3 = 18\n#### 18"), Some(1.0));
    assert_eq!(accuracy("the answer is 5", "5"), Some(0.0), "without an answer there is nothing right");
    assert_eq!(accuracy(r"\boxed{perhaps 5}", "5"), None);
    assert_eq!(accuracy(r"\boxed{5}", "nobody knows"), None);
}

#[test]
fn only_what_follows_the_reasoning_counts() {
    let judge = |text: &str| reasoning_accuracy(text, "1/3", "</think>");
    assert_eq!(judge(r"<think>\boxed{1}</think> \boxed{\frac{1}{3}}"), Some(1.0));
    assert_eq!(judge(r"<think>\boxed{\frac{1}{3}}</think> \boxed{\frac{1}{2}}"), Some(0.0));
    assert_eq!(judge(r"<think>\boxed{\frac{1}{3}}"), Some(0.0));
    assert_eq!(judge(r"</think>\boxed{one third}"), None);
}

#[test]
fn every_answer_of_gsm8k_equals_itself_and_not_its_successor() {
    let Some(data) = harness::data_dir("every_answer_of_gsm8k_equals_itself_and_not_its_successor") else { return };
    let mut answers = 0;
    for file in ["train.jsonl", "test.jsonl"] {
        for line in std::fs::read_to_string(data.join("gsm8k").join(file)).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let solution = row["answer"].as_str().unwrap();
            let gold = final_answer(solution).unwrap();
            let number: i64 = gold.replace(',', "").parse().unwrap();
            let spellings = [
                gold.to_owned(),
                number.to_string(),
                format!("{number}.00"),
                format!(r"\${number}"),
                format!(r"\frac{{{}}}{{2}}", number * 2),
                format!(r"{number}\text{{ dollars}}"),
                format!("x = {number}"),
            ];
            for spelling in spellings {
                assert_eq!(accuracy(&format!(r"\boxed{{{spelling}}}"), solution), Some(1.0), "{spelling}: {line}");
            }
            assert_eq!(accuracy(solution, gold), Some(1.0), "{line}");
            assert_eq!(accuracy(&format!("#### {}", number + 1), solution), Some(0.0), "{line}");
            answers += 1;
        }
    }
    assert_eq!(answers, 7473 + 1319);
}

const LIMIT: Duration = Duration::from_millis(50);

/// How long this thread has had a processor: what else the machine does takes none of it.
fn processor_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

/// The time of the slowest comparison with a text: the best of a few attempts, since caches may be cold.
fn slowest(text: &str) -> Duration {
    let boxed = format!(r"\boxed{{{text}}}");
    let time = |expected: &str| {
        let attempt = || {
            let started = processor_time();
            let _ = accuracy(&boxed, expected);
            processor_time() - started
        };
        let mut best = attempt();
        for _ in 0..4 {
            if best >= LIMIT {
                best = best.min(attempt());
            }
        }
        best
    };
    [text, "1", "x+1"].into_iter().map(time).max().unwrap_or_default()
}

#[test]
fn bombs_do_not_go_off() {
    let many = 1_000_000;
    let short = |piece: &str| piece.repeat(390 / piece.len());
    let bombs = [
        "9^9^9^9".to_owned(),
        "9^{9^{9^{9}}}".into(),
        "(((9^{40})^{40})^{40})^{40}".into(),
        "(x+y+z+a+b+c)^{40}".into(),
        format!("{}1{}", "(x+y)*(".repeat(40), ")".repeat(40)),
        short("(x+a)(y+b)(z+c)"),
        short("(x+y)^9"),
        short(r"\sqrt{99999989}+"),
        short("√9999991*"),
        short(r"\frac{1}{x+y}+"),
        short("x/(y+"),
        short("(1,"),
        short("{1,"),
        short(r"\{1,"),
        format!("{}1{}", short("(").split_at(190).0, short(")").split_at(190).0),
        format!(r"\{{{}1\}}", "1,".repeat(180)),
        "{".repeat(many),
        "}".repeat(many),
        format!("{}1{}", "{".repeat(many), "}".repeat(many)),
        r"\frac{1}{".repeat(many / 10),
        r"\boxed{".repeat(many / 10),
        "<answer>".repeat(many / 10),
        "#### ".repeat(many / 10),
        "9".repeat(many),
        "9".repeat(390),
        "-".repeat(390),
        "1+".repeat(190),
        format!("1{}", ",000".repeat(90)),
    ];
    for bomb in bombs {
        let time = slowest(&bomb);
        let start: String = bomb.chars().take(40).collect();
        assert!(time < LIMIT, "{start}… took {time:?}");
    }
}

/// Texts that look like mathematics.
fn mathematics() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[0-9]{1,4}",
        "[-+*/^(){},.=xyie%$ ]",
        Just(r"\frac".to_owned()),
        Just(r"\sqrt".to_owned()),
        Just(r"\pi".to_owned()),
        Just(r"\{".to_owned()),
        Just(r"\}".to_owned()),
        Just(r"\cup".to_owned()),
        Just(r"\infty".to_owned()),
        Just(r"\text{cm}".to_owned()),
        Just("^{".to_owned()),
        Just("sqrt(".to_owned()),
    ];
    proptest::collection::vec(piece, 0..80).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_is_survived_in_time(text in prop_oneof![any::<String>(), mathematics()]) {
        prop_assert!(slowest(&text) < LIMIT);
        if !text.trim().trim_end_matches('.').is_empty() {
            prop_assert_ne!(compare(&text, &text), Different);
        }
    }

    /// Both ways round the verdict is the same, and never that equal things are different.
    #[test]
    fn the_verdict_is_symmetric(a in mathematics(), b in mathematics()) {
        prop_assert_eq!(compare(&a, &b), compare(&b, &a));
    }
}
