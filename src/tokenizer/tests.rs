use super::gguf::{Vocabulary, files};
use super::*;
use crate::error::{Status, hints, status};

/// GPT-2's characters for the bytes 0 to 255.
fn alphabet() -> Vec<String> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    (0..256)
        .map(|byte| {
            let code = if printable(byte) { byte } else { next };
            next += u32::from(!printable(byte));
            char::from_u32(code).unwrap().to_string()
        })
        .collect()
}

/// 256 bytes, `he`, `ll`, `hell`, `hello`, `Ġhello`, a control token and a user-defined one.
fn byte_level(alphabet: &[String]) -> Vocabulary<'_> {
    let mut tokens: Vec<&str> = alphabet.iter().map(String::as_str).collect();
    tokens.extend(["he", "ll", "hell", "hello", "Ġhello", "<|im_end|>", "<tool>"]);
    let mut types = vec![1; 261];
    types.extend([3, 4]);
    Vocabulary {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens,
        types: Some(types),
        merges: Some(vec!["h e", "l l", "he ll", "hell o", "Ġ hello"]),
        bos: Some(261),
        eos: Some(261),
        chat_template: Some("{{ messages }}"),
        ..Vocabulary::default()
    }
}

fn load(vocabulary: &Vocabulary<'_>) -> Tokenizer {
    Tokenizer::from_bytes(&files(vocabulary).unwrap().tokenizer).unwrap()
}

#[derive(Deserialize)]
struct SentencePiece {
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i64>,
    bos: i128,
    eos: i128,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    tokens: Vec<u32>,
}

impl SentencePiece {
    fn golden() -> Self {
        serde_json::from_slice(include_bytes!("../../tests/golden/tokenizer/sentencepiece.json")).unwrap()
    }

    fn vocabulary(&self) -> Vocabulary<'_> {
        Vocabulary {
            model: "llama",
            tokens: self.tokens.iter().map(String::as_str).collect(),
            types: Some(self.types.clone()),
            scores: Some(self.scores.clone()),
            bos: Some(self.bos),
            eos: Some(self.eos),
            ..Vocabulary::default()
        }
    }
}

#[test]
fn bytes_are_merged_and_added_tokens_recognised_and_special_ones_left_out_of_text() {
    let alphabet = alphabet();
    let files = files(&byte_level(&alphabet)).unwrap();
    assert_eq!((files.bos, files.eos), (Some(261), vec![261]));
    assert_eq!(files.chat_template.as_deref(), Some("{{ messages }}"));
    let tokenizer = Tokenizer::from_bytes(&files.tokenizer).unwrap();
    let tokens = tokenizer.encode("hello hello<|im_end|><tool>é", true).unwrap();
    assert_eq!(tokens, [259, 260, 261, 262, 0xc3, 0xa9]);
    assert_eq!(tokenizer.decode(&tokens).unwrap(), "hello hello<tool>é");
    assert_eq!(tokenizer.decode(&[104, 0xff, 999_999]).unwrap(), "h\u{fffd}");
}

#[test]
fn a_text_begins_with_bos_where_the_file_or_its_pre_tokenizer_asks_for_it() {
    let alphabet = alphabet();
    let base = byte_level(&alphabet);
    let encode = |vocabulary: &Vocabulary<'_>, special| load(vocabulary).encode("hello", special).unwrap();
    for (pre, add_bos, expected) in [
        ("gpt-2", None, vec![259]),
        ("gpt-2", Some(true), vec![261, 259]),
        ("llama-bpe", None, vec![261, 259]),
        ("llama-bpe", Some(false), vec![259]),
    ] {
        let vocabulary = Vocabulary { pre: Some(pre), add_bos, ..base.clone() };
        assert_eq!(encode(&vocabulary, true), expected, "{pre} {add_bos:?}");
        assert_eq!(encode(&vocabulary, false), [259]);
    }
    let both = Vocabulary { add_bos: Some(true), add_eos: Some(true), ..base.clone() };
    assert_eq!(encode(&both, true), [261, 259, 261]);
    // Nothing asks for it and there is none.
    assert_eq!(encode(&Vocabulary { pre: Some("llama-bpe"), bos: None, ..base }, true), [259]);
}

#[test]
fn merges_from_scores_encode_as_sentencepiece_does() {
    let golden = SentencePiece::golden();
    let tokenizer = load(&golden.vocabulary());
    let bos = golden.bos as u32;
    for Case { text, tokens } in &golden.cases {
        assert_eq!(&tokenizer.encode(text, false).unwrap(), tokens, "{text:?}");
        assert_eq!(tokenizer.encode(text, true).unwrap(), [&[bos][..], tokens].concat());
        assert_eq!(&tokenizer.decode(tokens).unwrap(), text);
    }
    assert!(golden.cases.len() > 10);
    let bare = load(&Vocabulary { add_space_prefix: Some(false), ..golden.vocabulary() });
    let spelled = |tokenizer: &Tokenizer, text: &str| -> Vec<String> {
        let tokens = tokenizer.encode(text, false).unwrap();
        tokens.iter().map(|token| tokenizer.spelling(*token).unwrap()).collect()
    };
    assert_eq!(spelled(&tokenizer, "x").concat(), "▁x");
    assert_eq!(spelled(&bare, "x").concat(), "x");
    assert_eq!(bare.decode(&bare.encode(" x", false).unwrap()).unwrap(), " x");
}

#[test]
fn the_file_is_what_the_crate_writes_for_the_same_tokenizer() {
    let (alphabet, golden) = (alphabet(), SentencePiece::golden());
    let base = byte_level(&alphabet);
    let around = Vocabulary { add_bos: Some(true), add_eos: Some(true), eos: Some(0), ..base.clone() };
    let mut all = vec![around, golden.vocabulary()];
    for pre in ["gpt-2", "smollm", "default", "qwen2", "llama-bpe", "tekken"] {
        all.push(Vocabulary { pre: Some(pre), ..base.clone() });
    }
    for vocabulary in all {
        let ours = String::from_utf8(files(&vocabulary).unwrap().tokenizer).unwrap();
        let crates = tokenizers::Tokenizer::from_bytes(ours.as_bytes()).unwrap().to_string(false).unwrap();
        assert_eq!(ours, crates, "{:?}", vocabulary.pre);
    }
}

#[test]
fn a_malformed_vocabulary_is_an_input_fault_that_names_the_key() {
    let (alphabet, golden) = (alphabet(), SentencePiece::golden());
    let (gpt2, llama) = (byte_level(&alphabet), golden.vocabulary());
    let merges = |merge: &'static str| Vocabulary { merges: Some(vec!["h e", merge]), ..gpt2.clone() };
    let mut twice = gpt2.clone();
    twice.tokens[262] = "he";
    let mut nan = llama.clone();
    nan.scores.as_mut().unwrap()[300] = f32::NAN;
    for (vocabulary, expected) in [
        (merges("h q"), "`tokenizer.ggml.merges` 1, `h q`, needs `hq`, which is no token"),
        (merges("hi e"), "`tokenizer.ggml.merges` 1, `hi e`, needs `hi`, which is no token"),
        (merges("he"), "`tokenizer.ggml.merges` 1, `he`, is not two tokens"),
        (merges(" he"), "`tokenizer.ggml.merges` 1, ` he`, is not two tokens"),
        (merges("h e l"), "`tokenizer.ggml.merges` 1, `h e l`, is not two tokens"),
        (Vocabulary { merges: None, ..gpt2.clone() }, "`tokenizer.ggml.merges` is missing"),
        (twice, "`tokenizer.ggml.tokens` has `he` twice, as 256 and as 262"),
        (
            Vocabulary { types: Some(vec![1; 3]), ..gpt2.clone() },
            "`tokenizer.ggml.token_type` has 3 values, `tokenizer.ggml.tokens` 263",
        ),
        (
            Vocabulary { scores: Some(vec![]), ..llama.clone() },
            "`tokenizer.ggml.scores` has 0 values, `tokenizer.ggml.tokens` 700",
        ),
        (Vocabulary { scores: None, ..llama.clone() }, "`tokenizer.ggml.scores` is missing"),
        (nan, "`tokenizer.ggml.scores` 300 is not a number"),
        (
            Vocabulary { eos: Some(263), ..gpt2.clone() },
            "`tokenizer.ggml.eos_token_id` is 263, none of the 263 of `tokenizer.ggml.tokens`",
        ),
        (
            Vocabulary { bos: Some(-1), ..gpt2.clone() },
            "`tokenizer.ggml.bos_token_id` is -1, none of the 263 of `tokenizer.ggml.tokens`",
        ),
        (
            Vocabulary { bos: None, add_bos: Some(true), ..gpt2.clone() },
            "`tokenizer.ggml.add_bos_token` is true, but there is no `tokenizer.ggml.bos_token_id`",
        ),
        (Vocabulary { model: "t5", ..gpt2.clone() }, "`tokenizer.ggml.model` is `t5`; read are `gpt2` and `llama`"),
    ] {
        let error = files(&vocabulary).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(status(&error), Status::Input);
    }
    for (pre, begin) in [
        (Some("new"), "`tokenizer.ggml.pre` `new` is not known: how it splits text into words cannot be told; known"),
        (None, "`tokenizer.ggml.pre` is missing: how it splits text into words cannot be told; known"),
    ] {
        let error = files(&Vocabulary { pre, ..gpt2.clone() }).unwrap_err();
        assert!(error.to_string().starts_with(begin), "{error}");
        let hint = "use the model's Hugging Face folder, which has a `tokenizer.json`";
        assert_eq!(hints(&error).collect::<Vec<_>>(), [hint]);
    }
}

#[test]
fn tokens_that_end_a_turn_are_those_of_the_keys_then_those_of_that_name() {
    let alphabet = alphabet();
    let mut vocabulary = byte_level(&alphabet);
    vocabulary.tokens.extend(["<|endoftext|>", "<|eot_id|>", "</s>"]);
    // `<|eot_id|>` is no control token here.
    vocabulary.types.as_mut().unwrap().extend([3, 4, 3]);
    vocabulary.eos = Some(265);
    vocabulary.eot = Some(261);
    assert_eq!(files(&vocabulary).unwrap().eos, [265, 261, 263]);
}

#[test]
fn a_stream_gives_whole_characters_and_in_sum_what_decoding_gives() {
    let (alphabet, golden) = (alphabet(), SentencePiece::golden());
    let gpt2 = load(&byte_level(&alphabet));
    let llama = load(&golden.vocabulary());
    let text = "hello 👩🏽‍🚀é  x hello<|im_end|> hello ▁ \u{fffd} ";
    for tokenizer in [&gpt2, &llama] {
        let tokens = tokenizer.encode(text, false).unwrap();
        let mut stream = tokenizer.stream();
        let mut pieces = Vec::new();
        for token in &tokens {
            pieces.extend(stream.step(*token).unwrap());
        }
        assert!(pieces.iter().all(|piece| !piece.is_empty()));
        let replacements = |text: &str| text.matches(char::REPLACEMENT_CHARACTER).count();
        assert!(pieces.iter().map(|piece| replacements(piece)).sum::<usize>() <= 1, "{pieces:?}");
        pieces.extend(stream.finish().unwrap());
        assert_eq!(pieces.concat(), tokenizer.decode(&tokens).unwrap());
        assert!(pieces.len() > 12);
    }
}

#[test]
fn a_stream_gives_broken_characters_too_once_they_cannot_become_whole() {
    let alphabet = alphabet();
    let tokenizer = load(&byte_level(&alphabet));
    let mut stream = tokenizer.stream();
    assert_eq!(stream.step(0xf0).unwrap(), None);
    assert_eq!(stream.step(0x9f).unwrap(), None);
    assert_eq!(stream.step(256).unwrap().as_deref(), Some("\u{fffd}he"));
    let mut given = String::new();
    for _ in 0..20 {
        given.extend(stream.step(0xff).unwrap());
    }
    assert!(given.chars().count() >= 16, "{given}");
    given.extend(stream.finish().unwrap());
    assert_eq!(given, "\u{fffd}".repeat(20));
}

#[test]
fn what_is_no_tokenizer_is_an_error() {
    let alphabet = alphabet();
    let good = String::from_utf8(files(&byte_level(&alphabet)).unwrap().tokenizer).unwrap();
    let long = good.replacen(r#"["h","e"]"#, &format!(r#"["{}","e"]"#, "x".repeat(4000)), 1);
    let prefixed = good.replacen(r#""continuing_subword_prefix":null"#, r###""continuing_subword_prefix":"##""###, 1);
    assert!(long != good && prefixed != good);
    for text in [
        "",
        "{}",
        "[]",
        "null",
        r#"{"model":{"type":"BPE"}}"#,
        r#"{"model":1}"#,
        &good[..good.len() / 2],
        &long,
        &prefixed,
    ] {
        assert!(Tokenizer::from_bytes(text.as_bytes()).is_err(), "{}", &text[..text.len().min(80)]);
    }
    Tokenizer::from_bytes(good.as_bytes()).unwrap();
    let error = Tokenizer::from_file(Path::new("/nowhere/tokenizer.json")).err().unwrap();
    assert_eq!(
        (status(&error), error.to_string()),
        (Status::Input, "cannot read `/nowhere/tokenizer.json`".to_owned())
    );
}
