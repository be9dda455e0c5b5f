//! From a recipe and a checkpoint to the tensors of each part, their schemes, and the request that coremltools gets.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::part::{Graph, Part, PlannedPart, PlannedTensor, split_rows};
use super::plan::Engine;
use crate::arch::{EMBEDDING, FINAL_NORM, ModelTensor, TensorKind};
use crate::checkpoint::{Checkpoint, TensorRef};
use crate::error::Fault;
use crate::quant::{ComputeDtype, Granularity, Scheme, WeightDtype};
use crate::recipe::{self, OUTPUT_MATRIX, Recipe};

/// What planning a part needs.
pub(super) struct Planner<'a> {
    recipe: &'a Recipe,
    checkpoint: &'a Checkpoint,
    engine: Engine,
    /// Dtype of arithmetic.
    pub(super) compute: ComputeDtype,
    block_tensors: Vec<ModelTensor>,
    /// How the rows of embedding table and output matrix are split.
    pub(super) rows: Vec<Range<usize>>,
    /// Requests of blocks by the schemes of their tensors.
    requests: Vec<(Vec<Option<Scheme>>, Arc<Graph>)>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        recipe: &'a Recipe,
        checkpoint: &'a Checkpoint,
        engine: Engine,
        block_tensors: Vec<ModelTensor>,
    ) -> Self {
        let compute = match recipe.package.compute_precision {
            recipe::ComputePrecision::Float16 => ComputeDtype::F16,
            recipe::ComputePrecision::Float32 => ComputeDtype::F32,
        };
        let rows = split_rows(checkpoint.config().vocab);
        Self { recipe, checkpoint, engine, compute, block_tensors, rows, requests: Vec::new() }
    }

    /// Finds a part's tensors and says how each is stored.
    ///
    /// # Errors
    /// As [`super::plan::Plan::new`].
    pub(super) fn part(&mut self, part: Part) -> Result<PlannedPart> {
        match part {
            Part::Block(index) => self.block(index),
            Part::Head => self.head(),
            Part::Embedding => self.embedding(),
        }
    }

    fn block(&mut self, index: usize) -> Result<PlannedPart> {
        let tensors = self
            .block_tensors
            .iter()
            .map(|tensor| {
                let role = &*tensor.role;
                let weights = || self.recipe.weights_for(index, role);
                Ok(PlannedTensor {
                    source: self.checkpoint.block_tensor(index, tensor)?,
                    scheme: self.scheme(tensor, weights, || format!("layers.{index}.{role}"))?,
                    rows: None,
                    tensor: tensor.clone(),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let schemes: Vec<_> = tensors.iter().map(|planned| planned.scheme).collect();
        let request = match self.requests.iter().find(|(known, _)| *known == schemes) {
            Some((_, request)) => Arc::clone(request),
            None => {
                let request = Arc::new(Graph::from(self.block_request(&tensors)));
                self.requests.push((schemes, Arc::clone(&request)));
                request
            }
        };
        Ok(PlannedPart { part: Part::Block(index), request, tensors })
    }

    fn head(&self) -> Result<PlannedPart> {
        let config = self.checkpoint.config();
        let outputs: Vec<usize> = self.rows.iter().map(Range::len).collect();
        let mut list = config.head_tensors(&outputs).into_iter();
        let mut tensors = Vec::with_capacity(list.len());
        if let Some(tensor) = list.next() {
            let source = self.checkpoint.tensor_shaped(FINAL_NORM, &tensor.shape)?;
            tensors.push(PlannedTensor { tensor, source, rows: None, scheme: None });
        }
        let weights = || self.recipe.weights_of(OUTPUT_MATRIX);
        for (tensor, part) in list.zip(self.parts_of(config.output_matrix())?) {
            let (source, rows) = part?;
            let scheme = self.scheme(&tensor, weights, || format!("{OUTPUT_MATRIX}.weight"))?;
            tensors.push(PlannedTensor { tensor, source, rows: Some(rows), scheme });
        }
        let mut request = self.common_request("head", &tensors);
        request.insert("outputs".to_owned(), json!(outputs));
        Ok(PlannedPart { part: Part::Head, request: Arc::new(Graph::from(Value::Object(request))), tensors })
    }

    fn embedding(&self) -> Result<PlannedPart> {
        let sizes: Vec<usize> = self.rows.iter().map(Range::len).collect();
        let list = self.checkpoint.config().embedding_tensors(&sizes);
        let parts = list.into_iter().zip(self.parts_of(EMBEDDING)?);
        let tensors = parts.map(|(tensor, part)| {
            let (source, rows) = part?;
            Ok(PlannedTensor { tensor, source, rows: Some(rows), scheme: None })
        });
        let request = json!({ "part": "embedding", "dtype": ComputeDtype::F16.as_str() });
        Ok(PlannedPart {
            part: Part::Embedding,
            request: Arc::new(Graph::from(request)),
            tensors: tensors.collect::<Result<_>>()?,
        })
    }

    /// The parts of a matrix with a row for each token.
    fn parts_of(&self, name: &str) -> Result<impl Iterator<Item = Result<(TensorRef, Range<usize>)>>> {
        let config = self.checkpoint.config();
        let whole = self.checkpoint.tensor_shaped(name, &[config.vocab, config.hidden])?;
        Ok(self.rows.iter().map(move |rows| Ok((whole.rows(rows.clone())?, rows.clone()))))
    }

    /// How a tensor is stored; `name` is for messages.
    fn scheme(
        &self,
        tensor: &ModelTensor,
        weights: impl Fn() -> recipe::Weights,
        name: impl Fn() -> String,
    ) -> Result<Option<Scheme>> {
        if tensor.kind != TensorKind::Projection {
            return Ok(None);
        }
        let recipe::Weights::Quantized(weights) = weights() else { return Ok(None) };
        let dtype = match weights.dtype {
            recipe::WeightDtype::Float16 => return Ok(None),
            recipe::WeightDtype::Int8 => WeightDtype::Int8,
            recipe::WeightDtype::Int4 => WeightDtype::Int4,
        };
        let granularity = match weights.granularity {
            recipe::Granularity::PerChannel => Granularity::PerChannel,
            recipe::Granularity::PerTensor if self.engine == Engine::Native => {
                return Err(Fault::usage(
                    "`weights.granularity = \"per_tensor\"` needs the engine `coremltools`: its scales are stored in the \
                     program, which the native engine does not rewrite",
                )
                .with_hint("add `--engine coremltools`, or use `per_channel`, which is never less exact")
                .into());
            }
            recipe::Granularity::PerTensor => Granularity::PerTensor,
            recipe::Granularity::PerBlock => {
                Granularity::PerBlock { block_size: weights.block_size.unwrap_or_default() }
            }
        };
        if let Granularity::PerBlock { block_size } = granularity
            && (block_size == 0 || !tensor.shape[1].is_multiple_of(block_size))
        {
            return Err(Fault::usage(format!(
                "tensor `{}`: dim 1 is {}, not a multiple of block size {block_size}",
                name(),
                tensor.shape[1]
            ))
            .with_hint("choose a `weights.block_size` that divides it, or an `[[override]]` for this tensor")
            .into());
        }
        Ok(Some(Scheme { dtype, granularity, compute: self.compute }))
    }

    fn block_request(&self, tensors: &[PlannedTensor]) -> Value {
        let (config, package) = (self.checkpoint.config(), &self.recipe.package);
        let mut request = self.common_request("block", tensors);
        for (name, value) in [
            ("architecture", json!(config.architecture)),
            ("heads", json!(config.heads)),
            ("kv_heads", json!(config.kv_heads)),
            ("head_dim", json!(config.head_dim)),
            ("intermediate", json!(config.intermediate)),
            ("rope_theta", json!(config.rope_theta)),
            ("rope_scaling", json!(config.rope_scaling)),
            ("context", json!(package.context)),
            ("kv", json!(package.kv)),
        ] {
            request.insert(name.to_owned(), value);
        }
        Value::Object(request)
    }

    /// What coremltools is told of every part.
    fn common_request(&self, part: &str, tensors: &[PlannedTensor]) -> Map<String, Value> {
        let (config, package) = (self.checkpoint.config(), &self.recipe.package);
        let mut weights = Map::new();
        for planned in tensors {
            let Some(scheme) = planned.scheme else { continue };
            let block_size = match scheme.granularity {
                Granularity::PerBlock { block_size } => Some(block_size),
                _ => None,
            };
            let value = json!({
                "dtype": scheme.dtype.as_str(),
                "granularity": scheme.granularity.as_str(),
                "block_size": block_size,
            });
            weights.insert(planned.tensor.role.clone().into_owned(), value);
        }
        let functions = package.functions.entries().into_iter();
        let functions = functions.map(|(name, tokens)| (name.to_owned(), json!(package.rows(tokens))));
        let mut request = Map::new();
        for (name, value) in [
            ("part", json!(part)),
            ("hidden", json!(config.hidden)),
            ("rms_norm_eps", json!(config.rms_norm_eps)),
            ("functions", Value::Object(functions.collect())),
            ("compute_precision", json!(package.compute_precision)),
            ("norm", json!(package.norm)),
            ("target", json!(package.target)),
            ("weights", Value::Object(weights)),
        ] {
            request.insert(name.to_owned(), value);
        }
        request
    }
}
