//! Baseline files: numpy's own, and numpy reading ours.

use std::path::Path;
use std::process::Command;

use anebake::error::{Status, status};
use anebake::gate::{About, Baseline, Prompt};

use crate::support::stderr;

/// Runs Python code in `folder`.
#[track_caller]
fn python(folder: &Path, code: &str) -> String {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.venv/bin/python"))
        .args(["-c", code])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// What the files of numpy below hold: 2 prompts, 3 steps, 5 tokens; every logit is exact in float16.
const ARRAYS: &str = "
import io, zipfile
import numpy as np
logits = (np.arange(30) * 7 % 11 / 4 - 1).reshape(2, 3, 5)
ids = logits.argmax(-1)
base = dict(logits=logits.astype(np.float32), ids=ids, prompts=np.array(['one', 'zwölf']), steps=np.array(3))
";

fn expected() -> Baseline {
    let logits: Vec<f32> = (0..30u8).map(|i| f32::from(i * 7 % 11) / 4.0 - 1.0).collect();
    let ids = logits.chunks(5).map(|row| {
        let best = row.iter().enumerate().fold(0, |best, (i, value)| if *value > row[best] { i } else { best });
        u32::try_from(best).unwrap()
    });
    Baseline {
        prompts: ["one", "zwölf"].map(|text| Prompt::Text(text.to_owned())).to_vec(),
        tokens: None,
        steps: 3,
        vocab: 5,
        ids: ids.collect(),
        logits,
        about: None,
    }
}

#[test]
fn every_form_in_which_numpy_may_save_a_baseline_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let names = python(
        folder.path(),
        &format!(
            "{ARRAYS}
forms = {{'plain': dict(), 'f16': dict(logits=logits.astype('f2')), 'f64': dict(logits=logits),
    'big_endian': dict(logits=logits.astype('>f4'), ids=ids.astype('>i4'), prompts=base['prompts'].astype('>U9')),
    'fortran': dict(logits=np.asfortranarray(base['logits']), ids=np.asfortranarray(ids)),
    'i32': dict(ids=ids.astype('i4'), steps=np.array(3, 'i4')), 'u8': dict(ids=ids.astype('u1')),
    'bytes': dict(prompts=np.array(['one'.encode(), 'zwölf'.encode()])), 'flat_steps': dict(steps=np.array([3]))}}
for name, other in forms.items():
    np.savez(name + '.npz', **{{**base, **other}})
    print(name)
np.savez_compressed('deflated.npz', **base)
print('deflated')
for version in (1, 2, 3):
    with zipfile.ZipFile(f'version{{version}}.npz', 'w') as archive:
        for key, value in base.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.asarray(value), version=(version, 0))
            archive.writestr(key + '.npy', data.getvalue())
    print(f'version{{version}}')
"
        ),
    );
    assert_eq!(names.lines().count(), 13);
    for name in names.lines() {
        let read = Baseline::load(&folder.path().join(format!("{name}.npz"))).unwrap();
        assert_eq!(read, expected(), "{name}");
    }
}

#[test]
fn a_file_that_is_no_baseline_is_refused_by_file_and_array() {
    let folder = tempfile::tempdir().unwrap();
    python(
        folder.path(),
        &format!(
            "{ARRAYS}
def save(name, **other):
    kept = {{key: value for key, value in {{**base, **other}}.items() if value is not None}}
    np.savez(name + '.npz', **kept)
save('missing', ids=None)
save('object', prompts=np.array(['one', None], dtype=object))
save('structured', ids=np.zeros((2, 3), dtype=[('a', 'i4')]))
save('complex', logits=logits.astype('c8'))
save('flat', logits=logits.reshape(-1).astype('f4'))
save('empty', logits=np.zeros((0, 3, 5), 'f4'))
save('steps', steps=np.array(4))
save('rows', prompts=np.array(['one']))
save('count', ids=ids[:, :2])
save('float_ids', ids=ids.astype('f4'))
save('ids_outside', ids=ids + 5)
save('not_greedy', ids=(ids + 1) % 5)
nan = base['logits'].copy(); nan[1, 2, 3] = np.nan
save('nan', logits=nan)
save('tokens', prompt_ids=np.array([[1, -1], [-1, 2]]))
save('about', about=np.array('{{}}'))
data = open('missing.npz', 'rb').read()
open('truncated.npz', 'wb').write(data[:len(data) // 2])
open('text.npz', 'w').write('no zip')
np.save('single.npy', logits)
good = io.BytesIO(); np.savez(good, **base)
flipped = bytearray(good.getvalue())
flipped[flipped.find(b'NUMPY') + 200] ^= 1
open('flipped.npz', 'wb').write(flipped)
"
        ),
    );
    for (file, message) in [
        ("missing.npz", "`F` has no array `ids`"),
        ("object.npz", "cannot read `prompts.npy` in `F`: it is an object array, a pickle, which is never loaded"),
        ("structured.npz", "cannot read `ids.npy` in `F`: it is a structured array"),
        ("complex.npz", "cannot read `logits.npy` in `F`: its dtype is `<c8`"),
        ("flat.npz", "`F` is no baseline: array `logits` has shape [30]; it must be floats, [prompts, steps, vocab]"),
        ("empty.npz", "`F` is no baseline: array `logits` is empty: [0, 3, 5]"),
        ("steps.npz", "`F` is no baseline: array `steps` is [4], `logits` has 3 steps"),
        ("rows.npz", "`F` is no baseline: array `prompts` has 1 texts, `logits` 2 rows"),
        ("count.npz", "`F` is no baseline: array `ids` has 4 values, not [2, 3]"),
        ("float_ids.npz", "`F` is no baseline: array `ids` holds no integers"),
        ("ids_outside.npz", "`F` is no baseline: array `ids`, prompt 0, step 0: no token of a vocabulary of 5"),
        ("not_greedy.npz", "`F` is no baseline: array `ids`, prompt 0, step 0: token "),
        ("nan.npz", "`F` is no baseline: array `logits`, prompt 1, step 2: the logit of token 3 is NaN"),
        ("tokens.npz", "`F` is no baseline: array `prompt_ids`, prompt 1: [-1, 2] are no tokens"),
        ("about.npz", "`F` is no baseline: array `about`: missing field"),
        ("truncated.npz", "`F` is no `.npz` file, which is a zip archive"),
        ("text.npz", "`F` is no `.npz` file, which is a zip archive"),
        ("single.npy", "`F` is no `.npz` file, which is a zip archive"),
        ("flipped.npz", "cannot read `logits.npy` in `F`: "),
        ("none.npz", "cannot open `F`"),
    ] {
        let path = folder.path().join(file);
        let error = Baseline::load(&path).unwrap_err();
        let text = format!("{error:#}").replace(&path.display().to_string(), "F");
        assert!(text.starts_with(message), "{file}: {text}");
        assert_eq!(status(&error), Status::Input, "{file}");
    }
}

#[test]
fn what_is_saved_is_read_back_and_numpy_reads_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ours.npz");
    let baseline = Baseline {
        prompts: vec![Prompt::Text("zwölf".to_owned()), Prompt::Tokens(vec![4])],
        tokens: Some(vec![vec![1, 0, 2], vec![4]]),
        about: Some(About {
            made_by: "a test".to_owned(),
            model: "tiny".to_owned(),
            architecture: "llama".to_owned(),
            files: vec![("model.safetensors".to_owned(), 123)],
        }),
        ..expected()
    };
    baseline.save(&path).unwrap();
    assert_eq!(Baseline::load(&path).unwrap(), baseline);
    let first = std::fs::read(&path).unwrap();
    baseline.save(&path).unwrap();
    assert!(std::fs::read(&path).unwrap() == first, "the same baseline gave other bytes");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left");
    let shown = python(
        folder.path(),
        &format!(
            "{ARRAYS}
import json
z = np.load('ours.npz')
assert (z['logits'] == base['logits']).all() and z['logits'].dtype == np.float32
assert (z['ids'] == ids).all() and z['ids'].dtype == np.int64
print(z['prompts'].tolist(), z['steps'], z['prompt_ids'].tolist(), json.loads(str(z['about']))['model'])
"
        ),
    );
    assert_eq!(shown, "['zwölf', ''] 3 [[1, 0, 2], [4, -1, -1]] tiny\n");
}
