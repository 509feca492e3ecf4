//! Many runs at once.

use std::thread;

use crate::harness::{Marks, Tenure, on_every_store};

const PROCESSES: usize = 10;
const RUNS: usize = 100;

on_every_store! {
    fn a_thousand_runs_come_one_after_the_other(store) {
        let marks = Marks::new();
        let (witness, fences) = (marks.text("witness"), marks.text("fences"));
        // Whoever does not get the kernel's lock at once has seen somebody else.
        let script = format!(r#"flock -n {witness} sh -c 'echo "$TENURE_FENCE" >> {fences}' || exit 99"#);
        let url = &store.url();
        thread::scope(|scope| {
            for _ in 0..PROCESSES {
                scope.spawn(|| {
                    for _ in 0..RUNS {
                        let words = ["a", "-w", "forever", "--fenced", "sh", "-c", &script];
                        let output = Tenure::with_url(url, &words).output();
                        assert_eq!(output.status.code(), Some(0), "{output:?}");
                        assert_eq!(output.stderr, b"");
                    }
                });
            }
        });
        let fences: Vec<u64> = marks.read("fences").lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(fences.len(), PROCESSES * RUNS);
        assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
        assert_eq!(store.left("a"), None);
    }
}
