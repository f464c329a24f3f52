//! Answers that only look different, and answers that only look the same.

use super::{
    Verdict::{self, Different, Equal, Unsure},
    accuracy, compare,
};

fn check(verdict: Verdict, pairs: &[(&str, &str)]) {
    let both = pairs.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
    let wrong = both.filter(|(a, b)| compare(a, b) != verdict);
    let lines: Vec<String> = wrong.map(|(a, b)| format!("`{a}` and `{b}`: {:?}", compare(a, b))).collect();
    assert!(lines.is_empty(), "not {verdict:?}:\n{}", lines.join("\n"));
}

#[test]
fn looks_of_latex_fall_away() {
    check(
        Equal,
        &[
            (r"\text{27}", "27"),
            (r"\mathbf{7}", "7"),
            (r"\textbf{7}", "7"),
            (r"\mathrm{7}", "7"),
            (r"\boldsymbol{7}", "7"),
            (r"\text{\textbf{7}}", "7"),
            (r"\mathbf{\frac{1}{2}}", "0.5"),
            (r"{\bf 7}", "7"),
            (r"\large 7", "7"),
            (r"\Huge{7}", "7"),
            (r"\displaystyle \frac12", "0.5"),
            (r"7\\", "7"),
            (r"7 \\ ", "7"),
            (r"\underline{7}", "7"),
            (r"\color{red} 7", "7"),
            (r"\textcolor{red}{7}", "7"),
            (r"7\hspace{1cm}", "7"),
            (r"\;\,7\quad", "7"),
            (r"\boxed{7}", "7"),
            (r"\text{27 cm}", r"27\text{ cm}"),
            (r"\text{$5$}", "5"),
            (r"\mathbf 7", "7"),
            (r"{1 \over 2}", "0.5"),
            (r"\Bigl( 1, 2 \Bigr)", "(1,2)"),
            (r"\left.5\right.", r"5"),
            (r"\varnothing", r"\emptyset"),
            (r"\{\}", "∅"),
            (r"\nicefrac{1}{2}", "0.5"),
            (r"\sfrac12", "0.5"),
            (r"7\text{.}", "7"),
            (r"7\;", "7"),
            (r"7\ ", "7"),
            (r"\text{Answer: 72}", "72"),
            ("72,", "72"),
            (r"$72,$", "72"),
            ("1, 2,", "1, 2"),
        ],
    );
}

#[test]
fn looks_of_markdown_and_characters_fall_away() {
    check(
        Equal,
        &[
            ("**58**", "58"),
            ("**58**.", "58"),
            ("***58***", "58"),
            ("__58__", "58"),
            ("*58*", "58"),
            ("`58`", "58"),
            ("**58** eggs", "58 eggs"),
            ("**Answer:** 58", "58"),
            ("The answer is: 72", "72"),
            (r"\text{Answer: }12", "12"),
            ("\"58\"", "58"),
            ("1\u{2044}2", "0.5"),
            ("7\u{200b}2", "72"),
            ("½", "0.5"),
            ("3½", "3.5"),
            ("⅒", "0.1"),
            ("７", "7"),
            ("１２．５", "12.5"),
            ("x²", "x^2"),
            ("10⁻³", "0.001"),
            ("1 000 000", "1000000"),
            ("12\u{a0}345", "12345"),
            (r"1\;000", "1000"),
            ("0{,}75", "0.75"),
            ("12{,}5", "12.5"),
            ("5^{\\text{th}}", "5"),
            ("5th", "5"),
            ("1^{st}", "1"),
            (r"22\text{nd}", "22"),
            (r"3 \text{ million}", "3000000"),
            ("2.5 billion", "2500000000"),
            (r"3 \text{ thousand dollars}", r"3000 \text{ dollars}"),
            (r"\text{Area} = 12", "12"),
            ("Total cost = $12", "12"),
            ("= 12", "12"),
            (r"\approx 3.14", "3.14"),
        ],
    );
}

#[test]
fn choices_intervals_and_lists_may_be_written_otherwise() {
    check(
        Equal,
        &[
            (r"\textbf{(C)}\ 14", "C"),
            (r"\text{(C)}", "C"),
            (r"\text{C: a red cat}", "C"),
            ("(C) 14", "C"),
            ("C) 14", "(C)"),
            ("C. a red cat", r"\text{C}"),
            ("(C) 14", "14"),
            ("C)", "C"),
            ("Option C", "(C)"),
            ("option (C)", "C"),
            ("Choice C: a red cat", "C"),
            (r"x \ge 3", r"[3,\infty)"),
            (r"3 \le x", r"[3, \infty)"),
            ("x >= 3", r"x \geq 3"),
            ("x < 3", r"(-\infty, 3)"),
            (r"-2 \le x < 5", "[-2, 5)"),
            (r"5 > x \ge -2", "[-2, 5)"),
            (r"x < 1 \text{ or } x > 3", r"(-\infty,1) \cup (3,\infty)"),
            (r"\{x \mid x \ge 3\}", r"[3,\infty)"),
            ("3,2,1", "1,2,3"),
            (r"x = 2 \text{ or } x = 1", "1, 2"),
            ("x = 1, y = 2", "y = 2, x = 1"),
            (r"\frac12, 3", "3, 0.5"),
        ],
    );
}

#[test]
fn near_misses_are_never_right() {
    check(
        Different,
        &[
            (r"\text{27}", "28"),
            (r"\mathbf{7}", "-7"),
            ("**58**", "85"),
            (r"\textbf{(C)}\ 14", "D"),
            (r"\text{C: a red cat}", "B"),
            ("(C) 14", "(D) 15"),
            (r"x \ge 3", r"[4,\infty)"),
            (r"-2 \le x < 5", "[-2, 6)"),
            ("3,2,1", "1,2,4"),
            ("1, 2, 3", "1, 2"),
            ("5th", "6"),
            (r"3 \text{ million}", "3000"),
            (r"\text{Area} = 12", "13"),
            ("½", "0.25"),
            ("1 000", "1001"),
            ("0{,}75", "0.57"),
            (r"\emptyset", "0"),
            ("x²", "2x"),
            ("true", "false"),
            ("Yes", "No"),
            ("3,5", "4.5"),
            ("36893488147419103232", "36893488147419103233"),
            ("0.1666666666666667", "1/7"),
            ("19.99", "20"),
            ("(A) and (C)", "A"),
            ("3 125/500", "3125/500"),
            ("C)", "D"),
            ("Option C", "D"),
            (",5", "0.6"),
            ("1.000", "1001"),
            ("1,00,000", "200000"),
            ("c", "D"),
            ("- 72", "73"),
            ("3.6893488147419103e19", "36893488147500000000"),
        ],
    );
}

#[test]
fn what_may_be_meant_otherwise_is_left_open() {
    check(
        Unsure,
        &[
            ("0.1666666666666667", r"\frac16"),
            ("66.666666666666667", r"\frac{200}{3}"),
            ("19.999999999999996", "20"),
            ("0.30000000000000004", "0.3"),
            ("3,5", "3.5"),
            ("-3,5", "-3.5"),
            ("0,75", r"\frac34"),
            ("0,33", r"\frac13"),
            ("1.234,5", "1234.5"),
            ("1,234", "1.234"),
            (r"3,5 \text{ cm}", "3.5"),
            (r"x \ge 3", r"(3,\infty)"),
            (r"x \ge 3", r"y \ge 3"),
            ("x > 3", "3"),
            ("x = 1, y = 2", "x = 2, y = 1"),
            ("x = 1, y = 2", "2, 1"),
            ("1, 1, 2", "1, 2, 2"),
            ("(1, 2)", "2, 1"),
            ("Alice, Bob", "Bob, Alice"),
            ("(A) is wrong, so B", "A"),
            ("C: not this one", "C"),
            (r"\text{Area} = 12", r"\text{Perimeter} = 12"),
            ("mx = 5", "5"),
            ("ab = 12", "12"),
            ("sinx = 1", "1"),
            ("2x = 10", "10"),
            (r"\text{perhaps } 5", "5"),
            (r"\mathbb{R}", "R"),
            (",72", "72"),
            (",5", "0.5"),
            ("1.000", "1000"),
            ("12.345.678", "12345678"),
            ("1,00,000", "100000"),
            ("- 72", "72"),
            ("C", "c"),
            ("2X", "2x"),
            ("5, yes", "5"),
            ("Hence, 72", "72"),
            ("72, approximately", "72"),
            ("36893488147419103232", "3.6893488147419103e19"),
            (r"3.6893488147419103 \cdot 10^{19}", "36893488147419103232"),
            ("0.142857142857142857", "0.142857142857143"),
        ],
    );
}

#[test]
fn boxes_and_solutions_come_in_many_forms() {
    for (completion, solution, score) in [
        (r"so $\boxed 7$", "7", Some(1.0)),
        (r"\fbox{12}", "12", Some(1.0)),
        ("#### **58**", "58", Some(1.0)),
        (r"\boxed{**58**}", "58", Some(1.0)),
        (r"\boxed{7}", "x + 1 = 8, so x = 7. The answer is: 7", Some(1.0)),
        (r"\boxed{7}", "<answer>7</answer>", Some(1.0)),
        (r"\boxed{8}", "x + 1 = 8, so x = 7. The answer is: 7", Some(0.0)),
        (r"\boxed{5}, with \boxed as asked", "5", Some(1.0)),
        (r"\boxed{36893488147419103232}", "36893488147419103232", Some(1.0)),
        (r"\boxed{3,5}", "3.5", None),
        (r"\boxed{72,}", "72", Some(1.0)),
        ("#### 72,", "72", Some(1.0)),
        ("<answer>72,</answer>", "72", Some(1.0)),
        ("#### - 72", "72", None),
        (r"\boxed{72}", "If the answer is 5, add 67. So the answer is 72.", Some(1.0)),
        (r"\boxed{5}", "If the answer is 5, add 67. So the answer is $72$.\n", Some(0.0)),
        (r"\boxed{72}", "#### 7\n#### 72", Some(1.0)),
        (r"\boxed{7}", "#### 7\n#### 72", Some(0.0)),
    ] {
        assert_eq!(accuracy(completion, solution), score, "{completion} for {solution}");
    }
}

/// The checker reads at most 400 bytes, plainer rules all of an answer, however long a completion makes it.
#[test]
fn an_answer_of_nothing_but_looks_costs_little() {
    for piece in ["=", "=;", "**=", "\"=\"", "Answer: "] {
        let begin = std::time::Instant::now();
        let long = format!("\\boxed{{{}7}}", piece.repeat(1 << 17));
        assert_eq!(super::boxed(&long, "8"), 0.0);
        assert!(begin.elapsed().as_secs() < 20, "{piece}: {:?}", begin.elapsed());
    }
    assert_eq!(super::looks::bare("=== **7**;"), "7");
}

#[test]
fn plain_rules_know_the_looks_of_the_checker() {
    for (text, plain) in [
        (r"\operatorname{East}", "East"),
        (r"\underline{\mathbf{7}}", "7"),
        (r"\Large 7\quad", "7"),
        (r"1\,000", "1000"),
        (r"58\ eggs", "58 eggs"),
        (r"58\qquad eggs", "58  eggs"),
        (r"\$58", "58"),
        (r"\left.5\right.", "5"),
        (r"\leftarrow", r"\leftarrow"),
        (r"\item 7", r"\item 7"),
        (r"7\\", "7"),
    ] {
        assert_eq!(super::looks::without_commands(text), plain, "{text}");
    }
}
