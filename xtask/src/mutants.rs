//! `cargo xtask mutants`: every patch in `tests/mutants` breaks one rule of safety on purpose, and the test that it
//! names has to notice.
//!
//! A patch begins with three lines:
//!
//! ```text
//! # rule: S1
//! # breaks: validity is counted from the reply instead of the hand-out
//! # test: tenure-core::lib::mux::tests::rules::s1_validity_counts_from_the_hand_out
//! ```
//!
//! The test is named by its package, its target (`lib`, or the file under `tests/`) and its path in there. Patches
//! are applied to a copy under the target folder, never to the sources of whoever runs this.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use xtask::outcomes::{Table, functions};

const PATCHES: &str = "tests/mutants";
const PAGE: &str = "docs/verification.md";
const BEGIN: &str = "<!-- made by `cargo xtask mutants --table` -->\n";
const END: &str = "<!-- to here -->\n";
/// The rules of `docs/safety.md`.
const RULES: [&str; 19] = [
    "S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "S12", "S13", "S14", "S15",
    "S16", "S17", "S18", "S19",
];
/// Fewer patches than this for a rule are too few.
const LEAST: usize = 2;
/// A test that runs longer than this hangs; unmutated, none takes a tenth of it.
const LIMIT: Duration = Duration::from_secs(120);
/// Where tests of rules may be.
const SOURCES: [(&str, &str); 8] = [
    ("tenure-blocking", "runtime-blocking"),
    ("tenure-cli", "cli"),
    ("tenure-client", "client"),
    ("tenure-core", "core"),
    ("tenure-sim", "sim"),
    ("tenure-smol", "runtime-smol"),
    ("tenure-sqlite", "stores/sqlite"),
    ("tenure-tokio", "runtime-tokio"),
];

/// One patch.
struct Mutant {
    name: String,
    path: PathBuf,
    rule: String,
    breaks: String,
    test: Test,
}

/// What has to fail.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    package: String,
    target: String,
    path: String,
}

/// How a test ended.
enum Ended {
    Passed,
    Failed,
    /// Neither, and why.
    Odd(String),
}

pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let mutants = load(root)?;
    match arguments {
        ["--check"] => check(root, &mutants),
        ["--table"] => {
            let page = root.join(PAGE);
            let text = page_with_table(root, &mutants)?;
            fs::write(&page, text).map_err(|error| format!("{PAGE}: {error}"))
        }
        ["--part", part, names @ ..] => {
            let parts = part.split_once('/').and_then(|(part, parts)| {
                Some((part.parse::<usize>().ok()?, parts.parse::<usize>().ok()?))
            });
            match parts {
                Some((part, parts)) if (1..=parts).contains(&part) => {
                    let mut chosen = choose(&mutants, names)?;
                    let mut at = 0;
                    chosen.retain(|_| {
                        at += 1;
                        at % parts == part % parts
                    });
                    hunt(root, &chosen)
                }
                _ => Err(format!("--part {part}: not a part like 3/8")),
            }
        }
        names => hunt(root, &choose(&mutants, names)?),
    }
}

/// The part of a day, so that all of them have their turn within as many days as there are parts.
pub(crate) fn part_of_today(parts: u64) -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_secs() / (24 * 3600) % parts + 1
}

fn load(root: &Path) -> Result<Vec<Mutant>, String> {
    let folder = root.join(PATCHES);
    let entries = fs::read_dir(&folder).map_err(|error| format!("{PATCHES}: {error}"))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "patch"));
    paths.sort();
    paths.into_iter().map(Mutant::read).collect()
}

fn choose<'a>(mutants: &'a [Mutant], names: &[&str]) -> Result<Vec<&'a Mutant>, String> {
    for name in names {
        if !mutants.iter().any(|mutant| mutant.name.contains(name)) {
            return Err(format!("{PATCHES}: no patch has `{name}` in its name"));
        }
    }
    let wanted =
        |mutant: &&Mutant| names.is_empty() || names.iter().any(|name| mutant.name.contains(name));
    Ok(mutants.iter().filter(wanted).collect())
}

impl Mutant {
    fn read(path: PathBuf) -> Result<Mutant, String> {
        let name = path.file_stem().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
        let header = |field: &str| {
            let line = text.lines().find_map(|line| {
                let (named, value) = line.strip_prefix("# ")?.split_once(": ")?;
                (named == field).then(|| value.trim().to_owned())
            });
            line.ok_or_else(|| format!("{name}: no line `# {field}: ..`"))
        };
        let named = header("test")?;
        let mut parts = named.splitn(3, "::");
        let (Some(package), Some(target), Some(path_in)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return Err(format!("{name}: `{named}` is not package::target::path"));
        };
        Ok(Mutant {
            rule: header("rule")?,
            breaks: header("breaks")?,
            test: Test {
                package: package.into(),
                target: target.into(),
                path: path_in.into(),
            },
            name,
            path,
        })
    }
}

impl Test {
    fn function(&self) -> &str {
        self.path.rsplit("::").next().unwrap_or(&self.path)
    }
}

// ---- without building ----

fn check(root: &Path, mutants: &[Mutant]) -> Result<(), String> {
    let mut complaints = Vec::new();
    for mutant in mutants {
        let name = &mutant.name;
        if !RULES.contains(&mutant.rule.as_str()) {
            complaints.push(format!("{name}: there is no rule `{}`", mutant.rule));
        }
        if !exists(root, &mutant.test) {
            complaints.push(format!("{name}: there is no test `{}`", mutant.test.path));
        }
        if let Err(why) = apply(root, mutant, true) {
            complaints.push(why);
        }
    }
    for rule in RULES {
        let count = mutants.iter().filter(|mutant| mutant.rule == rule).count();
        if count < LEAST {
            complaints.push(format!("{rule}: {count} patches, {LEAST} at least"));
        }
    }
    if !complaints.is_empty() {
        return Err(format!("{PATCHES}\n  {}", complaints.join("\n  ")));
    }
    let page = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    let unknown = unknown_names(root, &page)?;
    if !unknown.is_empty() {
        return Err(format!(
            "{PAGE} names what is not there: {}",
            unknown.join(", ")
        ));
    }
    if page != page_with_table(root, mutants)? {
        return Err(format!(
            "{PAGE} is out of date; run `cargo xtask mutants --table`"
        ));
    }
    println!("  {} patches for {} rules", mutants.len(), RULES.len());
    Ok(())
}

/// Whether a package has this test in this target.
fn exists(root: &Path, test: &Test) -> bool {
    let Some((_, folder)) = SOURCES.iter().find(|(name, _)| *name == test.package) else {
        return false;
    };
    let folder = root.join(folder);
    let places = match test.target.as_str() {
        "lib" => vec![folder.join("src")],
        target => vec![
            folder.join("tests").join(format!("{target}.rs")),
            folder.join("tests").join(target),
        ],
    };
    let mut found = BTreeSet::new();
    places.iter().for_each(|place| collect(place, &mut found));
    found.contains(test.function())
}

/// The functions in a file, or in all files of a folder.
fn collect(place: &Path, found: &mut BTreeSet<String>) {
    let mut text = String::new();
    read_all(place, &mut text);
    found.extend(functions(&text));
}

fn page_with_table(root: &Path, mutants: &[Mutant]) -> Result<String, String> {
    let text = fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let (head, rest) = text.split_once(BEGIN).ok_or("the page has no table")?;
    let (_, tail) = rest.split_once(END).ok_or("the table has no end")?;
    let mut tests: BTreeMap<&str, Vec<(&str, Vec<String>)>> = BTreeMap::new();
    for (_, folder) in SOURCES {
        let mut found = BTreeSet::new();
        for part in ["src", "tests"] {
            collect(&root.join(folder).join(part), &mut found);
        }
        for rule in RULES {
            let of: Vec<String> = found
                .iter()
                .filter(|name| shows(name, rule))
                .cloned()
                .collect();
            if !of.is_empty() {
                tests.entry(rule).or_default().push((folder, of));
            }
        }
    }
    let mut table = String::from("\n| rule | tests named after it | mutants |\n|---|---|---|\n");
    for rule in RULES {
        let named: Vec<String> = tests
            .get(rule)
            .into_iter()
            .flatten()
            .map(|(folder, names)| {
                let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                format!("**{folder}**: {}", names.join(", "))
            })
            .collect();
        let of: Vec<String> = mutants
            .iter()
            .filter(|mutant| mutant.rule == rule)
            .map(|mutant| format!("{} (`{}`)", mutant.breaks, mutant.test.function()))
            .collect();
        let _ = writeln!(
            table,
            "| {rule} | {} | {} |",
            named.join("<br>"),
            of.join("<br>")
        );
    }
    Ok(format!("{head}{BEGIN}{table}\n{END}{tail}"))
}

/// The tests and the rows of outcomes that the page names and that do not exist.
fn unknown_names(root: &Path, page: &str) -> Result<Vec<String>, String> {
    let mut sources = String::new();
    for folder in [
        "cli",
        "client",
        "core",
        "runtime-blocking",
        "runtime-smol",
        "runtime-tokio",
        "sim",
        "stores",
        "tests",
    ] {
        read_all(&root.join(folder), &mut sources);
    }
    // Not only functions: some tests are made by a macro that is given their name.
    let words: BTreeSet<&str> = sources
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let rows: BTreeSet<String> = Table::load(root)?
        .rows
        .into_iter()
        .map(|row| row.id)
        .collect();
    let quoted = page.split('`').skip(1).step_by(2);
    Ok(quoted
        .filter(|name| {
            let of = |mark| {
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == mark;
                name.matches(mark).count() >= 1 && name.chars().all(plain)
            };
            (of('_') && !words.contains(name)) || (of('-') && !rows.contains(*name))
        })
        .filter(|name| !SOURCES.iter().any(|(_, folder)| folder == name))
        .map(str::to_owned)
        .collect())
}

fn read_all(place: &Path, text: &mut String) {
    if let Ok(entries) = fs::read_dir(place) {
        for entry in entries.flatten() {
            read_all(&entry.path(), text);
        }
    } else if place.extension().is_some_and(|kind| kind == "rs") {
        text.push_str(&fs::read_to_string(place).unwrap_or_default());
    }
}

/// Whether a test is named after a rule: `s5_..`, `s5a_..`, and not `s15_..`.
fn shows(name: &str, rule: &str) -> bool {
    let Some(rest) = name.strip_prefix(&rule.to_lowercase()) else {
        return false;
    };
    let part = rest.trim_start_matches(|c: char| c.is_ascii_lowercase());
    rest.len() - part.len() <= 1 && part.starts_with('_')
}

// ---- building and running ----

fn hunt(root: &Path, mutants: &[&Mutant]) -> Result<(), String> {
    let began = Instant::now();
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let place = Place {
        tree: root.join(&target).join("mutants/tree"),
        build: root.join(&target).join("mutants/build"),
    };
    let sources = sources(root)?;
    place.refresh(root, &sources)?;

    println!("  the tests, on the sources as they are");
    let tests: BTreeSet<&Test> = mutants.iter().map(|mutant| &mutant.test).collect();
    let mut programs: BTreeMap<(&str, &str), PathBuf> = BTreeMap::new();
    for test in &tests {
        let program = match programs.entry((&test.package, &test.target)) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => free.insert(place.build(test)?),
        };
        match place.play(program, test)? {
            Ended::Passed => {}
            Ended::Failed => return Err(format!("{} fails without a mutant", test.path)),
            Ended::Odd(why) => return Err(format!("{} without a mutant: {why}", test.path)),
        }
    }
    println!(
        "  {} tests pass, {:.0} s",
        tests.len(),
        began.elapsed().as_secs_f64()
    );

    let mut failures = Vec::new();
    println!("\n  {:<44} {:<4} {:>6}  caught by", "mutant", "rule", "s");
    for mutant in mutants {
        let began = Instant::now();
        place.refresh(root, &sources)?;
        let ended = apply(&place.tree, mutant, false)
            .and_then(|()| place.build(&mutant.test))
            .and_then(|program| place.play(&program, &mutant.test));
        let seconds = began.elapsed().as_secs_f64();
        let caught = match &ended {
            Ok(Ended::Failed) => mutant.test.function(),
            Ok(Ended::Passed) => "NOBODY: IT SURVIVES",
            Ok(Ended::Odd(_)) | Err(_) => "NOT PLAYED",
        };
        println!(
            "  {:<44} {:<4} {seconds:>6.1}  {caught}",
            mutant.name, mutant.rule
        );
        match ended {
            Ok(Ended::Failed) => {}
            Ok(Ended::Passed) => failures.push(format!(
                "{}: {} does not notice that {}",
                mutant.name, mutant.test.path, mutant.breaks
            )),
            Ok(Ended::Odd(why)) => failures.push(format!("{}: {why}", mutant.name)),
            Err(why) => failures.push(why),
        }
    }
    println!(
        "  {} of {} caught, {:.0} s in all",
        mutants.len() - failures.len(),
        mutants.len(),
        began.elapsed().as_secs_f64()
    );
    match failures.is_empty() {
        true => Ok(()),
        false => Err(format!("mutants\n  {}", failures.join("\n  "))),
    }
}

/// Where mutants are built: a copy of the sources, and a target folder of its own, so that no mutated program comes to
/// lie where a good one is looked for.
struct Place {
    tree: PathBuf,
    build: PathBuf,
}

/// The files that git knows or would add, as they are now.
fn sources(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let files: Vec<String> = text
        .split('\0')
        .filter(|file| !file.is_empty() && root.join(file).is_file())
        .map(str::to_owned)
        .collect();
    match files.is_empty() {
        true => Err("git lists no files".into()),
        false => Ok(files),
    }
}

impl Place {
    /// Makes the copy equal to the sources again. What is equal keeps its time, so that little is built anew.
    fn refresh(&self, root: &Path, sources: &[String]) -> Result<(), String> {
        let say = |error: std::io::Error| format!("copying the sources: {error}");
        for file in sources {
            let (from, to) = (root.join(file), self.tree.join(file));
            let wanted = fs::read(&from).map_err(say)?;
            if fs::read(&to).is_ok_and(|there| there == wanted) {
                continue;
            }
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder).map_err(say)?;
            }
            fs::write(&to, wanted).map_err(say)?;
        }
        let wanted: BTreeSet<PathBuf> = sources.iter().map(|file| self.tree.join(file)).collect();
        remove_others(&self.tree, &wanted).map_err(say)
    }

    /// Builds the program that has the test.
    fn build(&self, test: &Test) -> Result<PathBuf, String> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["test", "--no-run", "--locked", "--color", "never", "-p"])
            .arg(&test.package);
        match test.target.as_str() {
            "lib" => cargo.arg("--lib"),
            target => cargo.args(["--test", target]),
        };
        let output = cargo
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.build)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("cargo: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{} does not compile:\n{said}", test.package));
        }
        // "  Executable unittests src/lib.rs (/path/to/it)"
        let line = said.lines().find(|line| line.contains("Executable"));
        let path = line
            .and_then(|line| line.rsplit_once('('))
            .map(|(_, path)| PathBuf::from(path.trim_end_matches(')')));
        path.map(|path| self.tree.join(path))
            .ok_or_else(|| format!("cargo names no program:\n{said}"))
    }

    /// Runs the one test.
    fn play(&self, program: &Path, test: &Test) -> Result<Ended, String> {
        let folder = SOURCES.iter().find(|(name, _)| *name == test.package);
        let folder = folder.map_or(".", |(_, folder)| *folder);
        let mut child = Command::new(program)
            .args([test.path.as_str(), "--exact", "--color", "never"])
            .current_dir(self.tree.join(folder))
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        let mut out = child.stdout.take().ok_or("no output")?;
        let reading = thread::spawn(move || {
            let mut said = Vec::new();
            out.read_to_end(&mut said).ok();
            String::from_utf8_lossy(&said).into_owned()
        });
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                break status;
            }
            if began.elapsed() > LIMIT {
                child.kill().ok();
                child.wait().ok();
                return Ok(Ended::Odd(format!("{} hangs", test.path)));
            }
            thread::sleep(Duration::from_millis(10));
        };
        let said = reading.join().unwrap_or_default();
        Ok(match () {
            () if !said.contains("running 1 test\n") => {
                Ended::Odd(format!("there is no test `{}`", test.path))
            }
            () if status.success() && said.contains("1 passed") => Ended::Passed,
            () if said.contains("1 failed") && said.contains("panicked at") => Ended::Failed,
            () => Ended::Odd(format!("{} ends with {status}:\n{said}", test.path)),
        })
    }
}

/// Removes files that the sources do not have.
fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, wanted)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Applies a patch to the sources in `tree`, or only says whether it would apply.
fn apply(tree: &Path, mutant: &Mutant, only_check: bool) -> Result<(), String> {
    let mut git = Command::new("git");
    git.arg("apply");
    if only_check {
        git.arg("--check");
    } else if let Some(above) = tree.parent() {
        // Inside another working tree git would take the paths for those of that one, and leave out all of them.
        git.env("GIT_CEILING_DIRECTORIES", above);
    }
    let output = git
        .arg(&mutant.path)
        .current_dir(tree)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{} does not apply any more, refresh it: {}",
            mutant.name,
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_belongs_to_the_rule_in_its_name() {
        assert!(shows("s5_one", "S5") && shows("s5a_c1_two", "S5") && shows("s15_x", "S15"));
        assert!(!shows("s15_one", "S1") && !shows("s5_one", "S15") && !shows("single_try", "S1"));
    }

    #[test]
    fn every_part_has_its_day() {
        assert!((1..=7).contains(&part_of_today(7)));
    }
}
