//! Action documents: their canonical bytes, the key that follows from them, and what differs between two.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::Digest;

/// The name of an action: the SHA-256 of its document's canonical JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ActionKey(pub(super) Digest);

impl ActionKey {
    /// The digest itself.
    pub fn digest(&self) -> Digest {
        self.0
    }
}

impl fmt::Display for ActionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The key of an action document.
pub fn action_key(document: &Value) -> ActionKey {
    ActionKey(Digest::of(&canonical_json(document)))
}

/// The one spelling of a JSON value, in UTF-8, without white space.
///
/// - Members are sorted by the bytes of their names.
/// - Strings escape only `"`, `\` and control characters (`\b \t \n \f \r`, else `\u00xx` in lower case).
/// - Integers are plain decimals. A floating-point number is the shortest digits that read back as the same `f64`, in
///   scientific notation: `1e0`, `9.99e-1`, `-0e0`. So `1` and `1.0` are different values.
pub fn canonical_json(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    write_canonical(value, &mut out);
    out
}

/// The key of a document whose members' canonical JSON is at hand: that of [`action_key`], without building the document.
/// `members` are in the order of their names.
pub fn action_key_of_members(members: &[(&str, &[u8])]) -> ActionKey {
    debug_assert!(members.is_sorted_by_key(|(name, _)| name.as_bytes()), "canonical JSON sorts members");
    let mut out = Vec::with_capacity(members.iter().map(|(name, value)| name.len() + value.len() + 4).sum());
    for (name, value) in members {
        out.push(if out.is_empty() { b'{' } else { b',' });
        write_string(name, &mut out);
        out.push(b':');
        out.extend_from_slice(value);
    }
    out.push(b'}');
    ActionKey(Digest::of(&out))
}

fn write_canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => out.extend_from_slice(format!("{float:e}").as_bytes()),
            _ => out.extend_from_slice(number.to_string().as_bytes()),
        },
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_canonical(item, out);
            }
            out.push(b']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| name.as_bytes());
            out.push(b'{');
            for (index, (name, member)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_string(name, out);
                out.push(b':');
                write_canonical(member, out);
            }
            out.push(b'}');
        }
    }
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a string is written to memory");
}

/// One difference between two documents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Where: `recipe.weights.dtype`, `shape[0]`, `tensors[q_proj].sha256`; empty for the document itself.
    pub path: String,
    /// The old value; none where it was added.
    pub old: Option<Value>,
    /// The new value; none where it was removed.
    pub new: Option<Value>,
}

/// `recipe.weights.dtype: "int8" -> "int4"`; long values are cut, an absent one is `none`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 40;
        let show = |value: &Option<Value>| {
            let text = value.as_ref().map_or_else(|| "none".to_owned(), Value::to_string);
            match text.char_indices().nth(LONGEST) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        };
        write!(f, "{}: {} -> {}", self.path, show(&self.old), show(&self.new))
    }
}

/// What differs between two documents, in the order of the new one, then what was removed.
///
/// Members are compared by name, items of a list by position; where every item of both lists is an object whose string
/// `name` occurs once, items are compared by that name.
pub fn difference(old: &Value, new: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    compare("", Some(old), Some(new), &mut changes);
    changes
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, changes: &mut Vec<Change>) {
    let pairs: Vec<(String, Option<&Value>, Option<&Value>)> = match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            let kept = new.iter().map(|(name, value)| (join(name), old.get(name), Some(value)));
            let removed = old.iter().filter(|(name, _)| !new.contains_key(*name));
            kept.chain(removed.map(|(name, value)| (join(name), Some(value), None))).collect()
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => match (by_name(old), by_name(new)) {
            (Some(olds), Some(news)) => {
                let join = |name: &str| format!("{path}[{name}]");
                let kept = news.iter().map(|(name, value)| (join(name), olds.get(name).copied(), Some(*value)));
                let removed = olds.iter().filter(|(name, _)| !news.contains_key(*name));
                kept.chain(removed.map(|(name, value)| (join(name), Some(*value), None))).collect()
            }
            _ => (0..old.len().max(new.len()))
                .map(|index| (format!("{path}[{index}]"), old.get(index), new.get(index)))
                .collect(),
        },
        _ => {
            if old != new {
                changes.push(Change { path: path.to_owned(), old: old.cloned(), new: new.cloned() });
            }
            return;
        }
    };
    for (path, old, new) in pairs {
        compare(&path, old, new, changes);
    }
}

fn by_name(items: &[Value]) -> Option<BTreeMap<&str, &Value>> {
    let names: BTreeMap<_, _> =
        items.iter().map(|item| Some((item.get("name")?.as_str()?, item))).collect::<Option<_>>()?;
    (names.len() == items.len()).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Value {
        json!({
            "stage": "stamp",
            "config": {"rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "hidden": 1024, "tied": true, "bias": null},
            "é\n\"\\\u{1}": [-3, 0.999, -0.0, 18_446_744_073_709_551_615_u64, 0.1],
        })
    }

    #[test]
    fn the_canonical_bytes_of_a_document_are_pinned() {
        let text = concat!(
            r#"{"config":{"bias":null,"hidden":1024,"rms_norm_eps":1e-6,"rope_theta":1e6,"tied":true},"#,
            r#""stage":"stamp","é\n\"\\\u0001":[-3,9.99e-1,-0e0,18446744073709551615,1e-1]}"#
        );
        assert_eq!(String::from_utf8(canonical_json(&sample())).unwrap(), text);
        // python3: hashlib.sha256(text.encode()).hexdigest()
        let pinned = "c45f5cdfd651d5f69122b51610c74734a9573bf13daab2632c9e39644fb25a0e";
        assert_eq!(action_key(&sample()).to_string(), pinned);
    }

    #[test]
    fn the_order_of_members_does_not_matter_and_that_of_items_does() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":[1,2]}"#).unwrap();
        let other: Value = serde_json::from_str(r#" {"b":[1,2], "a":1} "#).unwrap();
        assert_eq!(action_key(&one), action_key(&other));
        assert_ne!(action_key(&one), action_key(&json!({"a": 1, "b": [2, 1]})));
        assert_ne!(action_key(&json!(1)), action_key(&json!(1.0)));
        assert_ne!(action_key(&json!("1")), action_key(&json!(1)));
    }

    proptest::proptest! {
        #[test]
        fn every_float_keeps_its_key_through_a_file(bits: u64) {
            let float = f64::from_bits(bits);
            proptest::prop_assume!(float.is_finite());
            let value = json!({ "float": float });
            let read: Value = serde_json::from_slice(&serde_json::to_vec(&value).unwrap()).unwrap();
            proptest::prop_assert_eq!(canonical_json(&read), canonical_json(&value));
            let canonical: Value = serde_json::from_slice(&canonical_json(&value)).unwrap();
            proptest::prop_assert_eq!(canonical, value);
        }
    }

    #[test]
    fn a_difference_names_the_path_and_both_values() {
        let old = json!({
            "recipe": {"dtype": "int8", "gone": 1},
            "tensors": [{"name": "q", "sha256": "aa"}, {"name": "k", "sha256": "bb"}],
            "shape": [1, 2],
            "same": {"x": 1},
        });
        let new = json!({
            "recipe": {"dtype": "int4"},
            "tensors": [{"name": "k", "sha256": "bb"}, {"name": "q", "sha256": "cc"}, {"name": "v", "sha256": "dd"}],
            "shape": [1, 3, 4],
            "same": {"x": 1},
        });
        let texts: Vec<_> = difference(&old, &new)
            .into_iter()
            .map(|change| {
                let text = |value: Option<Value>| value.map_or("-".to_owned(), |value| value.to_string());
                format!("{}: {} -> {}", change.path, text(change.old), text(change.new))
            })
            .collect();
        assert_eq!(
            texts,
            [
                r#"recipe.dtype: "int8" -> "int4""#,
                "recipe.gone: 1 -> -",
                r#"tensors[q].sha256: "aa" -> "cc""#,
                r#"tensors[v]: - -> {"name":"v","sha256":"dd"}"#,
                "shape[1]: 2 -> 3",
                "shape[2]: - -> 4",
            ]
        );
        assert_eq!(difference(&old, &old), []);
        assert_eq!(difference(&json!(1), &json!([1])).len(), 1);
    }
}
