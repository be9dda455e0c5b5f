//! Text in, text out.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

use serde_json::json;

use super::report;
use crate::support::{Bench, TinyModel, stderr, stdout};

/// What the model says after `0`; no two of its tokens are the same.
const SAYS: &str = "😀é ok.";
const BOS: u32 = 1;
const EOS: u32 = 2;

/// GPT-2's characters for bytes: those of [`SAYS`] and what prompts are made of.
const SPELLED: &str = "0ðŁĺĢÃ©Ġok.aberst:Ċ";

fn spelled() -> Vec<String> {
    let special = ["<unk>", "<s>", "</s>", "<|user|>"].map(str::to_owned);
    let mut tokens: Vec<String> = special.into_iter().chain(SPELLED.chars().map(String::from)).collect();
    tokens.extend((tokens.len()..96).map(|token| format!("<unused-{token}>")));
    tokens
}

fn token(spelling: &str) -> u32 {
    spelled().iter().position(|token| token == spelling).unwrap() as u32
}

/// A model whose next token depends on the last one only: attention and MLP add nothing, and the logit of a token is
/// how much the last one looks like the one before it in `0` + [`SAYS`] + the end.
fn scripted() -> Bench {
    let mut model = TinyModel::new("qwen3", 5).untied(6);
    for layer in 0..2 {
        for matrix in ["self_attn.o_proj", "mlp.down_proj"] {
            model.values(&format!("model.layers.{layer}.{matrix}.weight")).fill(0.0);
        }
    }
    model.values("model.norm.weight").fill(1.0);
    let embedding = model.values("model.embed_tokens.weight").clone();
    let head = model.values("lm_head.weight");
    head.fill(0.0);
    let mut script: Vec<u32> = SPELLED.chars().take(11).map(|c| token(&c.to_string())).collect();
    assert_eq!(script.len(), 1 + SAYS.len());
    script.push(EOS);
    for pair in script.windows(2) {
        let (from, to) = (pair[0] as usize * 64, pair[1] as usize * 64);
        head[to..to + 64].copy_from_slice(&embedding[from..from + 64]);
    }

    let tokens = spelled();
    let special = |id: u32| {
        json!({"id": id, "content": tokens[id as usize], "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let vocab: serde_json::Map<_, _> = (0..).zip(&tokens).map(|(id, token)| (token.clone(), json!(id))).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let around = |sequence: &str| json!([{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": sequence, "type_id": 0}}]);
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": (0..4).map(special).collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": byte_level, "decoder": byte_level,
        "post_processor": {"type": "TemplateProcessing", "single": around("A"), "pair": around("A"),
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}}},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    });
    let template = "{{ bos_token }}{% for message in messages %}\n{% if message.role == 'system' %}{{ message.content }}:\
                    {% else %}<|user|>{{ message.content }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}0{% endif %}";
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template});
    let bench = Bench::new(&model);
    std::fs::write(bench.path("model/tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(bench.path("model/tokenizer_config.json"), config.to_string()).unwrap();
    bench.convert(&["--recipe", "fp16-v1"]);
    bench
}

#[test]
fn the_model_ends_its_text_and_whole_characters_are_written_as_they_come() {
    let bench = scripted();
    let said = report(&bench, &["--prompt", "test 0"]);
    assert_eq!((said.text.as_deref(), &*said.stop), (Some(SAYS), "end"));
    let expected: Vec<u32> = SPELLED.chars().skip(1).take(10).map(|c| token(&c.to_string())).collect();
    assert_eq!(said.ids, expected);
    assert_eq!((said.prompt_ids[0], said.prompt_ids.len(), said.stats.prompt_tokens), (BOS, 7, 7));

    // Each write is a datagram.
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let mut child =
        bench.command().args(["run", "out", "--prompt", "test 0"]).stdout(OwnedFd::from(theirs)).spawn().unwrap();
    let mut writes = Vec::new();
    let mut buffer = [0; 1024];
    while writes.last().is_none_or(|write| write != "\n") {
        let length = ours.recv(&mut buffer).unwrap();
        writes.push(std::str::from_utf8(&buffer[..length]).unwrap().to_owned());
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(writes, ["😀", "é", " ", "o", "k", ".", "\n"]);
}

#[test]
fn a_text_cut_in_the_middle_of_a_character_ends_with_the_replacement_character() {
    let bench = scripted();
    let output = bench.run(&["run", "out", "--prompt", "0", "--max-tokens", "5"]);
    assert_eq!((&*stdout(&output), &*stderr(&output)), ("😀\u{fffd}\n", ""));
}

#[test]
fn a_prompt_comes_from_a_file_or_from_stdin_without_its_last_line_break() {
    let bench = scripted();
    let expected = report(&bench, &["--prompt", "a\n0"]).prompt_ids;
    std::fs::write(bench.path("prompt"), "a\n0\n").unwrap();
    assert_eq!(report(&bench, &["--prompt-file", "prompt"]).prompt_ids, expected);
    let mut child = bench
        .command()
        .args(["run", "out", "--prompt", "-", "-n", "6"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a\n0\r\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((&*stdout(&output), &*stderr(&output)), ("😀é\n", ""));
}

#[test]
fn a_chat_goes_through_the_models_template_with_its_special_tokens() {
    let bench = scripted();
    let spelled = spelled();
    let prompt = |arguments: &[&str]| -> String {
        let said = report(&bench, &[&["--chat", "--prompt", "test"], arguments].concat());
        assert_eq!(said.text.as_deref(), Some(SAYS));
        said.prompt_ids.iter().map(|id| spelled[*id as usize].as_str()).collect()
    };
    assert_eq!(prompt(&[]), "<s><|user|>test0");
    assert_eq!(prompt(&["--system", "sober"]), "<s>sober:<|user|>test0");
}

#[test]
fn a_reader_that_goes_away_ends_the_run_without_an_error() {
    let bench = scripted();
    let mut child = bench
        .command()
        .args(["run", "out", "--prompt", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*stderr(&output)), (Some(0), ""));
}

#[test]
fn a_chain_whose_tokenizer_is_damaged_is_an_input_fault_that_names_the_file() {
    let bench = scripted();
    std::fs::write(bench.path("out/tokenizer.json"), "{}").unwrap();
    let output = bench.run(&["run", "out", "--prompt", "0"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(
        stderr(&output).starts_with("anebake: error: `out/tokenizer.json` is no usable tokenizer\n"),
        "{}",
        stderr(&output)
    );
}
