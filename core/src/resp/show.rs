//! `Debug` of what a peer sent: short, escaped, and without the payloads that may be secrets.

use core::cell::Cell;
use core::fmt;

use super::read::{Items, ItemsIter, Pairs, PairsIter, Value};

/// Values shown of one reply, over all levels.
const VALUES: usize = 32;
/// Bytes shown of one line.
const BYTES: usize = 64;

impl fmt::Debug for Value<'_> {
    /// A `+` is shown, a number too. Of an error only the first word is, because servers repeat arguments of the
    /// command in the rest. Strings are shown as their length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(*self, f, &Cell::new(VALUES))
    }
}

impl fmt::Debug for Items<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_items(*self, f, &Cell::new(VALUES))
    }
}

impl fmt::Debug for Pairs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_pairs(*self, f, &Cell::new(VALUES))
    }
}

impl fmt::Debug for ItemsIter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ItemsIter({} left)", self.len())
    }
}

impl fmt::Debug for PairsIter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PairsIter({} left)", self.len())
    }
}

fn show(value: Value<'_>, f: &mut fmt::Formatter<'_>, budget: &Cell<usize>) -> fmt::Result {
    match value {
        Value::Simple(text) => write!(f, "Simple(\"{}\")", Text(text)),
        Value::Error(text) => write!(f, "Error({})", FirstWord(text)),
        Value::Int(number) => write!(f, "Int({number})"),
        Value::Bulk(bytes) => write!(f, "Bulk({} bytes)", bytes.len()),
        Value::Null => f.write_str("Null"),
        Value::Bool(truth) => write!(f, "Bool({truth})"),
        Value::Double(number) => write!(f, "Double({number:?})"),
        Value::BigNumber(digits) => write!(f, "BigNumber({})", Text(digits)),
        Value::BulkError(text) => write!(f, "BulkError({})", FirstWord(text)),
        Value::Verbatim { format, text } => write!(
            f,
            "Verbatim({}, {} bytes)",
            format.escape_ascii(),
            text.len()
        ),
        Value::Array(items) => named("Array", f, |f| show_items(items, f, budget)),
        Value::Set(items) => named("Set", f, |f| show_items(items, f, budget)),
        Value::Push(items) => named("Push", f, |f| show_items(items, f, budget)),
        Value::Map(pairs) => named("Map", f, |f| show_pairs(pairs, f, budget)),
    }
}

fn named(
    name: &str,
    f: &mut fmt::Formatter<'_>,
    content: impl FnOnce(&mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    f.write_str(name)?;
    content(f)
}

fn show_items(items: Items<'_>, f: &mut fmt::Formatter<'_>, budget: &Cell<usize>) -> fmt::Result {
    f.write_str("[")?;
    for (index, value) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        if !spend(budget) {
            write!(f, "... {} more", items.len() - index)?;
            break;
        }
        show(value, f, budget)?;
    }
    f.write_str("]")
}

fn show_pairs(pairs: Pairs<'_>, f: &mut fmt::Formatter<'_>, budget: &Cell<usize>) -> fmt::Result {
    f.write_str("{")?;
    for (index, (key, value)) in pairs.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        if !spend(budget) {
            write!(f, "... {} more", pairs.len() - index)?;
            break;
        }
        show(key, f, budget)?;
        f.write_str(": ")?;
        show(value, f, budget)?;
    }
    f.write_str("}")
}

fn spend(budget: &Cell<usize>) -> bool {
    let left = budget.get();
    budget.set(left.saturating_sub(1));
    left > 0
}

struct Text<'a>(&'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(shown) = self.0.get(..BYTES) else {
            return write!(f, "{}", self.0.escape_ascii());
        };
        write!(f, "{}", shown.escape_ascii())?;
        match self.0.len() - BYTES {
            0 => Ok(()),
            more => write!(f, "... {more} more bytes"),
        }
    }
}

struct FirstWord<'a>(&'a [u8]);

impl fmt::Display for FirstWord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self
            .0
            .split(|&byte| byte == b' ')
            .next()
            .unwrap_or_default();
        write!(f, "\"{}\", {} bytes", Text(word), self.0.len())
    }
}
