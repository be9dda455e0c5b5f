//! Conversations as text: a model's own chat template, a Jinja template in the manner of Hugging Face's transformers.

use std::collections::BTreeMap;

use anyhow::Result;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};

use crate::error::{Fault, OrFault};

/// One turn.
#[derive(Clone, Debug)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// The text of a conversation up to where the model's next turn begins. `variables` are what a template may use beside
/// `messages`, for instance `bos_token`.
///
/// # Errors
/// An input fault: the template is malformed, or refuses the messages.
pub fn render(template: &str, messages: &[Message], variables: &BTreeMap<String, String>) -> Result<String> {
    let mut environment = Environment::new();
    let turn = |message: &Message| context! { role => &message.role, content => &message.content };
    let messages: Vec<Value> = messages.iter().map(turn).collect();
    let variables = Value::from(variables.clone());
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the tags are those that Jinja has"));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment
        .render_str(template, context! { messages, add_generation_prompt => true, ..variables })
        .or_fault(|| Fault::input("the chat template fails").with_hint("leave out `--chat`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(role: &str, content: &str) -> Message {
        Message { role: role.to_owned(), content: content.to_owned() }
    }

    #[test]
    fn a_template_sees_messages_special_tokens_and_pythons_methods() {
        let template = "{{ bos_token }}{% for message in messages %}\n    {% if message.role == 'user' %}\n\
                        <u>{{ message['content'].strip().split(' ')[-1] }}\n    {% endif %}\n{% endfor %}\n\
                        {%- if add_generation_prompt %}<a>{% endif %}";
        let variables = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
        let text = render(template, &[said("system", "x"), said("user", " a <b> ")], &variables).unwrap();
        assert_eq!(text, "<s><u><b>\n<a>");
    }

    #[test]
    fn a_template_that_refuses_or_is_malformed_is_an_input_fault() {
        for (template, cause) in [("{{ raise_exception('no system') }}", "no system"), ("{% if %}", "syntax error")] {
            let error = render(template, &[said("user", "x")], &BTreeMap::new()).unwrap_err();
            assert_eq!(error.to_string(), "the chat template fails");
            assert!(format!("{error:#}").contains(cause), "{error:#}");
        }
    }
}
