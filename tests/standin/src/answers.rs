//! What the stand-in for Core ML computes: the reference runner's answers, asked from `standin.m`.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_float, c_int, c_long, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anebake::mlpackage::Package;
use anebake::runner::{Array, Arrays, Model, ReferenceRunner, Runner, State};

/// Loaded packages, and the states of each `MLState`.
#[derive(Default)]
struct Answers {
    models: HashMap<PathBuf, Box<dyn Model>>,
    states: HashMap<usize, (PathBuf, State)>,
}

static ANSWERS: Mutex<Option<Answers>> = Mutex::new(None);

/// A call that is being put together.
struct Call {
    package: PathBuf,
    function: String,
    state: usize,
    inputs: Arrays,
    outputs: Vec<(CString, Vec<c_long>, Vec<f32>)>,
    error: Option<CString>,
}

/// # Safety
/// `text` is a C string.
unsafe fn string(text: *const c_char) -> String {
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

fn package_in(compiled: &str) -> PathBuf {
    Path::new(compiled).join("model.mlpackage")
}

/// Begins a call.
///
/// # Safety
/// Both texts are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_run(
    compiled: *const c_char,
    function: *const c_char,
    state: *mut c_void,
) -> *mut c_void {
    let (compiled, function) = unsafe { (string(compiled), string(function)) };
    let (inputs, outputs) = (Arrays::new(), Vec::new());
    let call = Call { package: package_in(&compiled), function, state: state as usize, inputs, outputs, error: None };
    Box::into_raw(Box::new(call)).cast()
}

/// Adds an input.
///
/// # Safety
/// The pointers are to a call, a C string, `rank` sizes, and as many values as they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_input(
    call: *mut c_void,
    name: *const c_char,
    rank: c_long,
    shape: *const c_long,
    values: *const c_float,
    integers: c_int,
) {
    let (call, name) = unsafe { (&mut *call.cast::<Call>(), string(name)) };
    let shape: Vec<usize> =
        unsafe { std::slice::from_raw_parts(shape, rank as usize) }.iter().map(|size| *size as usize).collect();
    let values = unsafe { std::slice::from_raw_parts(values, shape.iter().product()) };
    let array = match integers {
        0 => Array::float(&shape, values.to_vec()),
        _ => Array::int(&shape, values.iter().map(|value| *value as i32).collect()),
    };
    call.inputs.insert(name, array);
}

/// Makes the call; gives why it failed, or null.
///
/// # Safety
/// `call` is a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_go(call: *mut c_void) -> *const c_char {
    let call = unsafe { &mut *call.cast::<Call>() };
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let Answers { models, states } = answers.get_or_insert_default();
    let mut go = || -> anyhow::Result<()> {
        if !models.contains_key(&call.package) {
            models.insert(call.package.clone(), ReferenceRunner::default().open(&call.package)?);
        }
        let model = &models[&call.package];
        if !states.contains_key(&call.state) {
            states.insert(call.state, (call.package.clone(), model.new_state()?));
        }
        let (package, state) = states.get_mut(&call.state).unwrap();
        anyhow::ensure!(*package == call.package, "the states are those of another model");
        for (name, array) in model.predict(&call.function, &call.inputs, state)? {
            let shape = array.shape.iter().map(|size| *size as c_long).collect();
            call.outputs.push((CString::new(name)?, shape, array.floats()?.to_vec()));
        }
        Ok(())
    };
    if let Err(error) = go() {
        call.error = Some(CString::new(format!("{error:#}")).unwrap());
    }
    call.error.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

/// An output by number; 0 behind the last.
///
/// # Safety
/// `call` is a call that was made; the others are out-pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_output(
    call: *mut c_void,
    index: c_long,
    name: *mut *const c_char,
    rank: *mut c_long,
    shape: *mut *const c_long,
    values: *mut *const c_float,
) -> c_int {
    let call = unsafe { &*call.cast::<Call>() };
    let Some((own_name, own_shape, own_values)) = call.outputs.get(index as usize) else { return 0 };
    unsafe {
        *name = own_name.as_ptr();
        *rank = own_shape.len() as c_long;
        *shape = own_shape.as_ptr();
        *values = own_values.as_ptr();
    }
    1
}

/// Ends a call.
///
/// # Safety
/// `call` is a call; nothing of it is used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_end(call: *mut c_void) {
    drop(unsafe { Box::from_raw(call.cast::<Call>()) });
}

/// Forgets states.
#[unsafe(no_mangle)]
pub extern "C" fn standin_forget(state: *mut c_void) {
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    answers.get_or_insert_default().states.remove(&(state as usize));
}

/// An op of a function by number, as C strings of at most `size` bytes; 0 behind the last.
///
/// # Safety
/// The texts are C strings; `operator` has room for 64 bytes, `output` for `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_op(
    compiled: *const c_char,
    function: *const c_char,
    index: c_long,
    operator: *mut c_char,
    output: *mut c_char,
    size: c_long,
) -> c_int {
    let (compiled, function) = unsafe { (string(compiled), string(function)) };
    let package = Package::open(&package_in(&compiled)).unwrap();
    let program = package.model().ml_program.as_ref().unwrap();
    let Some((_, found)) = program.functions.iter().find(|(name, _)| **name == function) else { return 0 };
    let Some(op) = found.body().unwrap().operations.get(index as usize) else { return 0 };
    let name = op.outputs.first().map_or("", |output| output.name.as_str());
    let write = |text: &str, to: *mut c_char, room: usize| {
        let text = &text.as_bytes()[..text.len().min(room - 1)];
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
            *to.add(text.len()) = 0;
        }
    };
    write(&op.r#type, operator, 64);
    write(name, output, size as usize);
    1
}
