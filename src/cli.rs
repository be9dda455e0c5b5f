//! The command line: what can be said, and nothing about how it is done.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Bakes the checkpoint of a transformer language model into Core ML packages, one per transformer block.
#[derive(Debug, Parser)]
#[command(name = "anebake", version, about, max_term_width = 110, propagate_version = true)]
#[command(after_help = "Exit status: 0 done, 1 a check said no, 2 usage or recipe, 3 environment, 4 input or disk, \
                        5 incomplete (--frozen), 130 interrupted.\n\n\
                        Start with `anebake convert --model sample`, then `anebake inspect out/block-00.mlpackage`.")]
pub struct Cli {
    /// What applies to every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// No progress, no notes; only data and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// More detail; Python tracebacks with errors
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Print one JSON document on stdout instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Where baked packages, templates and digests are kept [default: the user's cache folder]
    #[arg(long, global = true, value_name = "DIR", env = "ANEBAKE_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// The Python that has coremltools [default: the active or the project's .venv]
    #[arg(long, global = true, value_name = "FILE", env = "ANEBAKE_PYTHON")]
    pub python: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bake a model's blocks into an output folder
    Convert(Convert),
    /// Show what a bake would do: hits, misses and why, sizes; writes nothing
    Plan(Plan),
    /// Tell why a block is cached or must be baked
    Explain(Explain),
    /// List a package's functions, interface, ops and weights
    Inspect(Inspect),
    /// Compare two bakes, block by block and tensor by tensor
    Diff(Diff),
    /// Bake with another engine too and compare weights and outputs
    Verify(Verify),
    /// Check the environment and say how to mend it
    Doctor,
    /// List, show and check recipes
    #[command(subcommand)]
    Recipe(Recipe),
    /// Look after the cache
    #[command(subcommand)]
    Cache(Cache),
    /// Print a completion script for a shell
    Completions(Completions),
}

/// What to bake: shared by the commands that work on a bake.
#[derive(Clone, Debug, Args)]
pub struct Selection {
    /// A built-in recipe or a TOML file; see `anebake recipe list`
    #[arg(short, long, value_name = "NAME|FILE", default_value = "int8-v1")]
    pub recipe: String,
    /// A Hugging Face folder, a .gguf file, `hf:owner/name[@revision]` or `sample` [default: the recipe's source]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Override a recipe key, for instance `--set weights.dtype=int4`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Only these blocks, for instance `0,3,8-11`
    #[arg(long, value_name = "BLOCKS")]
    pub only: Option<String>,
    /// Who quantizes and writes: anebake itself, or coremltools block by block (slow; the witness)
    #[arg(long, value_name = "ENGINE", default_value = "native")]
    pub engine: Engine,
}

/// Who bakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Template and stamp.
    Native,
    /// coremltools' own conversion and quantization, block by block.
    Coremltools,
}

/// `anebake convert`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  anebake convert --model sample\n  anebake convert --recipe int8-rtn-v1 --model \
                        hf:Qwen/Qwen3-0.6B --out qwen3\n  anebake convert --recipe ./my.toml --model ./checkpoint \
                        --only 0,27\n\nFinished blocks stay in the cache: after Ctrl-C the same command resumes.")]
pub struct Convert {
    /// What to bake.
    #[command(flatten)]
    pub selection: Selection,
    /// Output folder
    #[arg(short, long, value_name = "DIR", default_value = "out")]
    pub out: PathBuf,
    /// Blocks baked side by side [default: the number of cores]
    #[arg(short, long, value_name = "N")]
    pub jobs: Option<std::num::NonZeroUsize>,
    /// Bake again what is cached
    #[arg(long)]
    pub force: bool,
    /// Fail with status 5 rather than bake what is not cached
    #[arg(long, conflicts_with = "force")]
    pub frozen: bool,
}

/// `anebake plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// What would be baked.
    #[command(flatten)]
    pub selection: Selection,
    /// Output folder that the bake would write
    #[arg(short, long, value_name = "DIR", default_value = "out")]
    pub out: PathBuf,
}

/// `anebake explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Number of the block
    #[arg(value_name = "BLOCK")]
    pub block: usize,
    /// What would be baked.
    #[command(flatten)]
    pub selection: Selection,
}

/// `anebake inspect`.
#[derive(Debug, Args)]
pub struct Inspect {
    /// A `.mlpackage` folder
    #[arg(value_name = "PACKAGE")]
    pub package: PathBuf,
}

/// `anebake diff`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status 1 when the bakes differ.")]
pub struct Diff {
    /// Output folder of a bake, or a package
    #[arg(value_name = "A")]
    pub left: PathBuf,
    /// Output folder of another bake, or a package
    #[arg(value_name = "B")]
    pub right: PathBuf,
}

/// `anebake verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// The engine to compare with
    #[arg(long, value_name = "ENGINE", default_value = "coremltools")]
    pub against: Witness,
    /// What to verify.
    #[command(flatten)]
    pub selection: Selection,
}

/// Whom `verify` compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Witness {
    /// coremltools' own conversion and quantization.
    Coremltools,
}

/// `anebake recipe`.
#[derive(Debug, Subcommand)]
pub enum Recipe {
    /// List the built-in recipes
    List,
    /// Print a recipe
    Show(RecipeShow),
    /// Check a recipe file
    Check(RecipeCheck),
}

/// `anebake recipe show`.
#[derive(Debug, Args)]
pub struct RecipeShow {
    /// A built-in recipe or a TOML file
    #[arg(value_name = "NAME|FILE")]
    pub recipe: String,
    /// Override a recipe key; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// With everything it inherits and every default
    #[arg(long)]
    pub resolved: bool,
    /// Say where each value comes from
    #[arg(long, requires = "resolved")]
    pub origin: bool,
}

/// `anebake recipe check`.
#[derive(Debug, Args)]
pub struct RecipeCheck {
    /// A TOML file or a built-in recipe
    #[arg(value_name = "FILE|NAME")]
    pub recipe: String,
}

/// `anebake cache`.
#[derive(Debug, Subcommand)]
pub enum Cache {
    /// Entries, sizes, age
    Stats,
    /// Hash everything again; damaged files are quarantined and baked anew by the next bake
    Verify,
    /// Remove what was not used for long, or more than fits
    Gc(CacheGc),
    /// Print the cache folder
    Path,
}

/// `anebake cache gc`.
#[derive(Debug, Args)]
pub struct CacheGc {
    /// Keep at most this much, for instance `500MB` or `20GiB`; `0` empties the cache
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<String>,
    /// Remove what was not used for this long, for instance `12h` or `30d`
    #[arg(long, value_name = "AGE")]
    pub max_age: Option<String>,
}

/// `anebake completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}
