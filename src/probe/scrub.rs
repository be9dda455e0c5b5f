//! Takes names and paths out of what is meant to be shown to others: texts of errors hold both.

use serde_json::Value;

/// What must not be told.
#[derive(Clone, Debug)]
pub(super) struct Scrub {
    /// Names, and what stands for them.
    names: Vec<(String, &'static str)>,
}

/// Names shorter than this are parts of too many words.
const SHORTEST_NAME: usize = 3;

impl Scrub {
    /// Names of this machine and its user.
    pub(super) fn of_this_machine() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let short = host.split('.').next().unwrap_or_default().to_owned();
        let user = |name| std::env::var(name).unwrap_or_default();
        Self::of(&[host, short], &[user("USER"), user("LOGNAME")])
    }

    fn of(hosts: &[String], users: &[String]) -> Self {
        let hosts = hosts.iter().map(|name| (name.clone(), "<host>"));
        let names = hosts.chain(users.iter().map(|name| (name.clone(), "<user>")));
        Self { names: names.filter(|(name, _)| name.len() >= SHORTEST_NAME && name != "localhost").collect() }
    }

    /// Scrubs every text in a document; keys stay.
    pub(super) fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.value(value)),
            Value::Object(members) => members.values_mut().for_each(|value| self.value(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// A text without names; of absolute paths only the last part stays. Addresses on the web stay.
    fn text(&self, text: &str) -> String {
        let mut scrubbed = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('/') {
            let (before, path) = rest.split_at(at);
            let length = path.find(|c: char| c.is_whitespace() || "\"'`(),;<>".contains(c)).unwrap_or(path.len());
            let (path, after) = path.split_at(length);
            let is_web = before.ends_with("http:") || before.ends_with("https:");
            let starts = before.chars().next_back().is_none_or(|c| c.is_whitespace() || "\"'`(),;<>=:".contains(c));
            scrubbed.push_str(before);
            let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            if is_web || !starts || path.trim_matches('/').is_empty() {
                scrubbed.push_str(path);
            } else {
                scrubbed.push_str("…/");
                scrubbed.push_str(name);
            }
            rest = after;
        }
        scrubbed.push_str(rest);
        self.names.iter().fold(scrubbed, |text, (name, stand_in)| without(&text, name, stand_in))
    }
}

/// `text` with the word `name` replaced.
fn without(text: &str, name: &str, stand_in: &str) -> String {
    let word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let (mut found, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(name) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        found.push_str(before);
        let whole = !word(before.chars().next_back()) && !word(after.chars().next());
        found.push_str(if whole { stand_in } else { name });
        rest = after;
    }
    found + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scrubbed(text: &str) -> String {
        Scrub::of(&["annas-mac.local".to_owned(), "annas-mac".to_owned()], &["anna".to_owned(), "x".to_owned()])
            .text(text)
    }

    #[test]
    fn of_paths_the_last_part_stays() {
        for (text, wanted) in [
            ("cannot open /Users/anna/ladder/block-io.mlpackage (Code=4)", "cannot open …/block-io.mlpackage (Code=4)"),
            ("file:///private/var/folders/x1/T/a.mlmodelc/", "file:…/a.mlmodelc"),
            ("in \"/Users/anna b/c\"", "in \"…/anna b/c\""),
            ("path=/tmp/one", "path=…/one"),
            ("12 ops/s, 3/4 of them", "12 ops/s, 3/4 of them"),
            ("see https://github.com/apple/coremltools/issues/1", "see https://github.com/apple/coremltools/issues/1"),
            ("a / b", "a / b"),
        ] {
            assert_eq!(scrubbed(text), wanted.replace("anna", "<user>"), "{text}");
        }
    }

    #[test]
    fn names_of_host_and_user_are_replaced_where_they_are_words() {
        assert_eq!(scrubbed("annas-mac.local: anna ran annabel's x"), "<host>: <user> ran annabel's x");
    }

    #[test]
    fn every_text_of_a_document_is_scrubbed() {
        let mut value = json!({ "a": ["/Users/anna/b", 1], "c": { "d": "anna" } });
        Scrub::of(&[], &["anna".to_owned()]).value(&mut value);
        assert_eq!(value, json!({ "a": ["…/b", 1], "c": { "d": "<user>" } }));
    }
}
