//! A loaded function: its states, its buffers, its predictions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use objc2::rc::Retained;
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2::{AnyThread, Message};
use objc2_core_ml::{
    MLDictionaryFeatureProvider, MLFeatureProvider, MLFeatureValue, MLModel, MLMultiArray, MLPredictionOptions, MLState,
};
use objc2_foundation::{NSDictionary, NSString};

use super::arrays::{DeviceArray, Pool, dtype};
use super::{ComputeUnits, configuration, failed, guarded, url};
use crate::mlpackage::inventory::{Feature, FunctionInfo};
use crate::runner::{Array, Arrays, Data, Held};

/// A function that Core ML has loaded.
pub(in super::super) struct LoadedFunction(Mutex<Inside>);

struct Inside {
    model: Retained<MLModel>,
    /// Buffers by feature.
    pools: BTreeMap<String, Pool>,
}

// SAFETY: Core ML lets a model be used on any thread, one at a time; the mutex sees to that.
unsafe impl Send for Inside {}

/// The states of one conversation, where the device keeps them.
pub(in super::super) struct DeviceState(Retained<MLState>);

impl LoadedFunction {
    pub(in super::super) fn load(compiled: &Path, units: ComputeUnits, function: Option<&str>) -> Result<Self> {
        guarded("load", || {
            let configuration = configuration(units, function);
            // SAFETY: both objects live until the call returns.
            let model =
                unsafe { MLModel::modelWithContentsOfURL_configuration_error(&*url(compiled)?, &configuration) };
            let model = model.map_err(|error| failed("load", &error))?;
            Ok(Self(Mutex::new(Inside { model, pools: BTreeMap::new() })))
        })
    }

    pub(in super::super) fn new_state(&self) -> Result<DeviceState> {
        let inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: takes nothing. A model without states gives an empty one.
        guarded("make states", || Ok(DeviceState(unsafe { inside.model.newState() })))
    }

    /// Puts floats into a buffer of float16.
    pub(in super::super) fn hold(&self, array: Array) -> Result<Array> {
        guarded("make an array", || {
            let mut held = DeviceArray::new(&array.shape, dtype("fp16")?)?;
            held.write(&array)?;
            Ok(Array { shape: array.shape, data: Data::Held(Held::new(Arc::new(held))) })
        })
    }

    pub(in super::super) fn predict(
        &self,
        function: &FunctionInfo,
        inputs: &Arrays,
        state: &mut DeviceState,
    ) -> Result<Arrays> {
        let mut inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        guarded("predict", || inside.predict(function, inputs, &state.0))
    }
}

impl Inside {
    fn predict(&mut self, function: &FunctionInfo, inputs: &Arrays, state: &MLState) -> Result<Arrays> {
        // What is taken from a pool goes back at the end; after an error it is lost to the pool and freed.
        let mut written: Vec<(&Feature, Arc<DeviceArray>)> = Vec::new();
        let mut given: Vec<(&str, &MLMultiArray)> = Vec::new();
        let mut backings: Vec<(&Feature, Arc<DeviceArray>)> = Vec::new();
        for feature in &function.inputs {
            let array = &inputs[&feature.name];
            if on_device(feature, array)?.is_none() {
                let mut buffer = self.take(feature)?;
                let inner = Arc::get_mut(&mut buffer).context("a buffer of the pool is shared")?;
                inner.write(array).with_context(|| format!("input `{}`", feature.name))?;
                written.push((feature, buffer));
            }
        }
        let mut own = written.iter();
        for feature in &function.inputs {
            let object = match on_device(feature, &inputs[&feature.name])? {
                Some(array) => array.object(),
                None => own.next().context("an input was not written")?.1.object(),
            };
            given.push((&feature.name, object));
        }
        for feature in &function.outputs {
            backings.push((feature, self.take(feature)?));
        }
        let given_backings: Vec<(&str, &MLMultiArray)> =
            backings.iter().map(|(feature, array)| (feature.name.as_str(), array.object())).collect();
        let result = self.call(&given, state, &given_backings)?;
        let mut outputs = Arrays::new();
        for (feature, backing) in backings {
            // SAFETY: getters.
            let array = unsafe {
                result.featureValueForName(&NSString::from_str(&feature.name)).and_then(|value| value.multiArrayValue())
            };
            let array = array.with_context(|| format!("Core ML gave no output `{}`", feature.name))?;
            // Core ML may have declined the buffer: then it made one itself.
            let used = std::ptr::eq(&*array, backing.object());
            let output = if used { Arc::clone(&backing) } else { Arc::new(DeviceArray::of(array)) };
            self.put(feature, backing);
            let output = DeviceArray::shared(output).with_context(|| format!("output `{}`", feature.name))?;
            outputs.insert(feature.name.clone(), output);
        }
        for (feature, buffer) in written {
            self.put(feature, buffer);
        }
        Ok(outputs)
    }

    fn take(&mut self, feature: &Feature) -> Result<Arc<DeviceArray>> {
        let shape = feature.shape.iter().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>();
        let shape = shape.with_context(|| format!("`{}` has no static shape", feature.name))?;
        let dtype = dtype(&feature.dtype).with_context(|| format!("`{}`", feature.name))?;
        self.pools.entry(feature.name.clone()).or_default().take(&shape, dtype)
    }

    fn put(&mut self, feature: &Feature, array: Arc<DeviceArray>) {
        self.pools.entry(feature.name.clone()).or_default().put(array);
    }

    fn call(
        &self,
        inputs: &[(&str, &MLMultiArray)],
        state: &MLState,
        backings: &[(&str, &MLMultiArray)],
    ) -> Result<Retained<ProtocolObject<dyn MLFeatureProvider>>> {
        // SAFETY: the dictionaries hold feature values and multi-arrays, as documented; the caller has the only access to
        // the states.
        unsafe {
            let features = dictionary(inputs, |array| MLFeatureValue::featureValueWithMultiArray(array).into());
            let features =
                MLDictionaryFeatureProvider::initWithDictionary_error(MLDictionaryFeatureProvider::alloc(), &features)
                    .map_err(|error| failed("take the inputs", &error))?;
            let options = MLPredictionOptions::new();
            options.setOutputBackings(&dictionary(backings, |array| array.retain().into()));
            self.model
                .predictionFromFeatures_usingState_options_error(ProtocolObject::from_ref(&*features), state, &options)
                .map_err(|error| failed("predict", &error))
        }
    }
}

/// The buffer in which a device of this runner already has an input.
fn on_device<'a>(feature: &Feature, array: &'a Array) -> Result<Option<&'a DeviceArray>> {
    let Data::Held(held) = &array.data else { return Ok(None) };
    let Some(device) = held.downcast::<DeviceArray>() else { return Ok(None) };
    // SAFETY: a getter.
    let same = device.shape() == array.shape && unsafe { device.object().dataType() } == dtype(&feature.dtype)?;
    Ok(same.then_some(device))
}

fn dictionary(
    arrays: &[(&str, &MLMultiArray)],
    value: impl Fn(&MLMultiArray) -> Retained<AnyObject>,
) -> Retained<NSDictionary<NSString, AnyObject>> {
    let names: Vec<Retained<NSString>> = arrays.iter().map(|(name, _)| NSString::from_str(name)).collect();
    let names: Vec<&NSString> = names.iter().map(|name| &**name).collect();
    let values: Vec<Retained<AnyObject>> = arrays.iter().map(|(_, array)| value(array)).collect();
    NSDictionary::from_retained_objects(&names, &values)
}
