//! The command line: what can be said, and nothing about how it is done.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use crate::lint::Severity;
use crate::mil::Arithmetic;
use crate::runner::coreml::ComputeUnits;

/// Bakes the checkpoint of a transformer language model into Core ML packages, one per transformer block.
#[derive(Debug, Parser)]
#[command(name = "anebake", version, about, max_term_width = 110, propagate_version = true)]
#[command(after_help = "Start with:\n  anebake convert --model sample\n  anebake inspect out/block-00.mlpackage\n\n\
                        Exit status:\n    0  done\n    1  a check said no (gate, smoke, lint, verify, diff, cache verify)\n    \
                        2  command line or recipe\n    3  environment: Python, coremltools, macOS\n    \
                        4  input or disk: checkpoint, hub, cache, output\n    \
                        5  --frozen, and a block is not in the cache\n  130  interrupted; the same command resumes")]
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
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// No progress, no notes; only data, warnings and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// More detail; Python tracebacks with errors
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Print one JSON document on stdout instead of text; errors stay text, on stderr
    #[arg(long, global = true)]
    pub json: bool,
    /// Where baked packages, templates and digests are kept [default: `anebake` in the user's cache folder]
    #[arg(long, global = true, value_name = "DIR", env = "ANEBAKE_CACHE_DIR", hide_env_values = true)]
    pub cache_dir: Option<PathBuf>,
    /// The Python that has coremltools, or its venv [default: the active venv, ./.venv, the one that anebake was built
    /// with]
    #[arg(long, global = true, value_name = "PATH", env = "ANEBAKE_PYTHON", hide_env_values = true)]
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
    /// Judge a baked chain: does it say what its model says?
    Gate(Gate),
    /// Find what is known to fail: in a recipe, a package or an output folder
    Lint(Lint),
    /// Try the packages on Core ML: do they run, where, and are they right? Needs macOS
    Smoke(Smoke),
    /// One package or chain of `smoke`, in a process of its own
    #[command(hide = true, name = "smoke-child")]
    SmokeChild(SmokeChild),
    /// Continue a prompt with a baked chain, on any system
    Run(Run),
    /// Find out which graphs this machine's Neural Engine takes
    Probe(Probe),
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
}

/// Which parts of the model: shared by the commands that work on several.
#[derive(Clone, Debug, Args)]
pub struct Parts {
    /// Only these blocks, for instance `0,3,8-11`, or `head`, or `embedding` [default: all]
    #[arg(long, value_name = "BLOCKS")]
    pub only: Option<String>,
}

/// Who bakes: shared by the commands that work on one bake.
#[derive(Clone, Copy, Debug, Args)]
pub struct Baker {
    /// `native`: anebake quantizes and writes; `coremltools`: coremltools does, block by block, seconds each
    #[arg(long, value_name = "ENGINE", default_value = "native", hide_possible_values = true)]
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
                        --only 0,27\n\nFinished blocks stay in the cache: after Ctrl-C the same command resumes.\n\
                        Packages of an earlier bake in the output folder are replaced or removed; other files stay.")]
pub struct Convert {
    /// What to bake.
    #[command(flatten)]
    pub selection: Selection,
    /// Which parts of the model.
    #[command(flatten)]
    pub parts: Parts,
    /// Who bakes.
    #[command(flatten)]
    pub baker: Baker,
    /// Output folder
    #[arg(short, long, value_name = "DIR", default_value = "out")]
    pub out: PathBuf,
    /// Blocks baked side by side [default: the number of cores]
    #[arg(short, long, value_name = "N")]
    pub jobs: Option<std::num::NonZeroUsize>,
    /// Bake the blocks again even where they are cached
    #[arg(long)]
    pub force: bool,
    /// Fail with status 5 rather than bake what is not cached
    #[arg(long, conflicts_with = "force")]
    pub frozen: bool,
    /// Do not judge the baked chain; `anebake gate` does it later
    #[arg(long)]
    pub no_gate: bool,
    /// On macOS: do not try the packages on Core ML; `anebake smoke` does it later
    #[arg(long)]
    pub no_smoke: bool,
    /// Bake although this lint rule finds an error; may be repeated
    #[arg(long, value_name = "ID")]
    pub allow: Vec<String>,
}

/// `anebake plan`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  anebake plan --model sample\n  anebake plan --model sample --set \
                        package.context=1024 --json")]
pub struct Plan {
    /// What would be baked.
    #[command(flatten)]
    pub selection: Selection,
    /// Which parts of the model.
    #[command(flatten)]
    pub parts: Parts,
    /// Who would bake.
    #[command(flatten)]
    pub baker: Baker,
    /// Output folder that the bake would write; only its free space is looked at
    #[arg(short, long, value_name = "DIR", default_value = "out")]
    pub out: PathBuf,
}

/// `anebake explain`.
#[derive(Debug, Args)]
#[command(after_help = "Give it what the bake was given:\n  anebake explain 0 --recipe int8-rtn-v1 --model sample\n\n\
                        With --json it prints the whole document whose hash is the block's key.")]
pub struct Explain {
    /// Number of the block, from 0, or `head`, or `embedding`
    #[arg(value_name = "BLOCK")]
    pub part: String,
    /// What would be baked.
    #[command(flatten)]
    pub selection: Selection,
    /// Who would bake.
    #[command(flatten)]
    pub baker: Baker,
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
#[command(
    after_help = "Exit status 1 where packages differ or one side lacks some; other recipes, models or tools that \
                        led to equal packages are listed and are no difference."
)]
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
#[command(
    after_help = "Examples:\n  anebake verify --model sample --only 0\n  anebake verify --recipe fp16-v1 --model \
                        ./checkpoint\n\nWrites no output folder; both bakes go through the cache. Exit status 1 where \
                        weights or outputs differ."
)]
pub struct Verify {
    /// The engine to compare with: coremltools' own conversion and quantization, seconds a block
    #[arg(long, value_name = "ENGINE", default_value = "coremltools", hide_possible_values = true)]
    pub against: Witness,
    /// What to verify.
    #[command(flatten)]
    pub selection: Selection,
    /// Which parts of the model.
    #[command(flatten)]
    pub parts: Parts,
}

/// Whom `verify` compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Witness {
    /// coremltools' own conversion and quantization.
    Coremltools,
}

/// `anebake probe`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  anebake probe\n  anebake probe ladder --results my-mac.json\n  anebake probe ladder --only \
                        block-mask,block-io\n\nMakes a ladder of small packages, from one norm to 28 blocks in one \
                        package, each of which asks one question: RMSNorm, RoPE, attention, the MLP, a block by how it \
                        keeps keys and values, rows of a call, kinds of weights, deployment targets. The reference \
                        runner is compared with coremltools' own meaning of every package. On a Mac each package is then \
                        run by Core ML in a process of its own, and the end is a table of what this machine takes and \
                        the recipe to bake by. Made elsewhere, the folder can be carried to a Mac, which needs no Python.\n\n\
                        Results hold facts about the chip and the system, no names and no paths: share them.\n\
                        Exit status 1 where the reference runner disagrees."
)]
pub struct Probe {
    /// Folder of the ladder; what it lacks is made
    #[arg(value_name = "DIR", default_value = "ladder")]
    pub dir: PathBuf,
    /// Only these packages, by name
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Also write the results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Which processors Core ML may use
    #[arg(long, value_name = "UNITS", default_value_t)]
    pub units: ComputeUnits,
    /// Seconds after which a package counts as hanging
    #[arg(long, value_name = "SECONDS", default_value = "120")]
    pub time_limit: std::num::NonZeroU32,
}

/// Who runs the packages: shared by the commands that run a whole chain.
#[derive(Clone, Copy, Debug, Args)]
pub struct RunBy {
    /// `reference`: anebake's interpreter, on any system; `coreml`: Core ML, on macOS 15
    #[arg(long, value_name = "RUNNER", default_value = "reference", hide_possible_values = true)]
    pub runner: RunnerName,
    /// With --runner coreml: what Core ML may use: cpu, cpu-and-gpu, cpu-and-ane, all
    #[arg(long, value_name = "UNITS", default_value_t)]
    pub units: ComputeUnits,
}

/// Who runs packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RunnerName {
    /// The interpreter.
    Reference,
    /// Core ML.
    Coreml,
}

/// `anebake gate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  anebake gate out\n  anebake gate out --prompts my.txt --steps 16 --strict\n  anebake gate \
                        out --save-baseline sample.npz\n  anebake gate out --baseline sample.npz --blocks\n\nThe chain is \
                        run along the baseline's tokens. It passes where every most likely token is the baseline's and \
                        every cosine of logits is high enough. Where the baseline's two likeliest logits are less than a \
                        float16 step apart, another order is a tie: listed, and no failure without --strict.\n\nBaselines \
                        are .npz files with the keys logits [prompts, steps, vocab], ids [prompts, steps], prompts and \
                        steps. Exit status 1 where the chain fails."
)]
pub struct Gate {
    /// Output folder of a whole bake
    #[arg(value_name = "OUT", default_value = "out")]
    pub out: PathBuf,
    /// The model that was baked: a Hugging Face folder, a .gguf file, `hf:owner/name[@revision]` or `sample` [default:
    /// the one that the output's manifest names]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// One prompt a line, or a JSON array of texts or of arrays of tokens [default: the recipe's]
    #[arg(long, value_name = "FILE", conflicts_with = "baseline")]
    pub prompts: Option<PathBuf>,
    /// Tokens of each continuation [default: the recipe's, or all of --baseline]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub steps: Option<u16>,
    /// Least cosine between a step's logits and the baseline's [default: the recipe's]
    #[arg(long, value_name = "COSINE")]
    pub min_cosine: Option<f64>,
    /// Count ties as wrong
    #[arg(long)]
    pub strict: bool,
    /// Write the baseline to a file, for --baseline
    #[arg(long, value_name = "FILE.npz", conflicts_with = "baseline")]
    pub save_baseline: Option<PathBuf>,
    /// Judge by logits from a file, not by those of the model
    #[arg(long, value_name = "FILE.npz")]
    pub baseline: Option<PathBuf>,
    /// Show how far each block's output is from the model's, alone and in the chain
    #[arg(long)]
    pub blocks: bool,
    /// Compare perplexity on a text too
    #[arg(long, value_name = "FILE")]
    pub perplexity: Option<PathBuf>,
    /// `fp16`: every result rounded as the packages declare; `f32`: none, what the graphs mean
    #[arg(long, value_name = "ARITHMETIC", default_value_t)]
    pub arithmetic: Arithmetic,
    /// Who runs the packages.
    #[command(flatten)]
    pub by: RunBy,
    /// Where the chain fails, do not look for weights to keep in float16
    #[arg(long)]
    pub no_hints: bool,
}

/// `anebake lint`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  anebake lint int8-v1\n  anebake lint out\n  anebake lint Other.mlpackage --ane\n  anebake \
                        lint --explain weights-per-block\n\nReads, and runs nothing: a rule knows what has failed \
                        elsewhere, and what is said about the Neural Engine (ANE) is an estimate. `anebake smoke` on a \
                        Mac shows what happens.\n\nA recipe whose `smoke.require` names `ane`, and --ane, make errors of \
                        what is sure to keep ops off the ANE. Exit status 1 where an error is found (--deny moves the \
                        threshold)."
)]
pub struct Lint {
    /// A recipe (name or .toml), a `.mlpackage`, or a folder of packages
    #[arg(value_name = "RECIPE|PACKAGE|OUT", required_unless_present_any = ["explain", "list"])]
    pub subject: Option<String>,
    /// Override a recipe key, for instance `--set package.kv=mask`; may be repeated; with a recipe only
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Judge it as meant for the ANE, whatever the recipe demands
    #[arg(long)]
    pub ane: bool,
    /// Take what this rule finds as wanted; may be repeated
    #[arg(long, value_name = "ID")]
    pub allow: Vec<String>,
    /// Least severity that makes the exit status 1: `error`, `warn` or `info`
    #[arg(long, value_name = "SEVERITY", default_value = "error")]
    pub deny: Severity,
    /// Say all that is known about a rule
    #[arg(long, value_name = "ID", conflicts_with_all = ["subject", "list"])]
    pub explain: Option<String>,
    /// List the rules
    #[arg(long, conflicts_with = "subject")]
    pub list: bool,
}

/// `anebake smoke`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  anebake smoke out\n  anebake smoke out --only 0,1 --units all\n  anebake smoke out --json > \
                        smoke.json\n\nNeeds macOS 15 and the output folder, no Python: bake anywhere, copy the folder to a \
                        Mac, try it there. Each package is compiled, loaded and run in a process of its own, on inputs from \
                        a run of the reference runner; what kills or hangs that process is part of the result. The columns \
                        of the ANE are what Core ML plans; where an op ran, Core ML tells nobody.\n\nWhat counts is in the \
                        recipe, `[smoke] require`: \"load\", \"numerics\", \"ane\". Where \"ane\" counts, an op that is \
                        planned for another processor fails the package. The result is kept in manifest.json. Exit status 1 \
                        where something that counts is missing, 3 where there is no Core ML."
)]
pub struct Smoke {
    /// Output folder of a bake
    #[arg(value_name = "OUT", default_value = "out")]
    pub out: PathBuf,
    /// Which parts of the model.
    #[command(flatten)]
    pub parts: Parts,
    /// What Core ML may use: cpu, cpu-and-gpu, cpu-and-ane, all
    #[arg(long, value_name = "UNITS", default_value_t)]
    pub units: ComputeUnits,
    /// Seconds that a package may take before it is killed; the chain may take this for every four packages
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = clap::value_parser!(u32).range(1..))]
    pub time_limit: u32,
    /// Calls of one token that follow the prompt
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub steps: u16,
    /// Do not run the packages as one chain
    #[arg(long)]
    pub no_chain: bool,
}

/// `anebake smoke-child`.
#[derive(Debug, Args)]
pub struct SmokeChild {
    /// Folder with the request
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// `anebake run`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true).args(["prompt", "prompt_file", "ids"])))]
#[command(
    after_help = "Examples:\n  anebake run out --prompt \"The capital of France is\" --stats\n  anebake run out --chat \
                        --prompt \"Write a haiku\" --temperature 0.7 --seed 1\n  anebake run out --prompt-file long.txt \
                        --max-tokens 1 --headroom\n\nRuns the packages as they are, with the reference runner unless --runner says otherwise. stdout \
                        gets the text alone; notes, --stats and --headroom go to stderr."
)]
pub struct Run {
    /// Output folder of a whole bake
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// The text to continue; `-` reads stdin, without its last line break
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// The text to continue, from a file, without its last line break
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// Tokens to continue, for instance `1,2,3`; prints tokens, needs no tokenizer
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub ids: Option<Vec<u32>>,
    /// Make the prompt a user's turn by the model's chat template
    #[arg(long, conflicts_with = "ids")]
    pub chat: bool,
    /// A system message before the user's turn
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// End after so many tokens, if the model does not end before
    #[arg(short = 'n', long, value_name = "N", default_value = "128")]
    pub max_tokens: NonZeroUsize,
    /// Draw tokens at random: below 1 prefers likely ones, 0 always takes the likeliest
    #[arg(short, long, value_name = "T", default_value = "0", value_parser = temperature, hide_default_value = true,
          allow_negative_numbers = true)]
    pub temperature: f32,
    /// Draw from the K likeliest tokens only
    #[arg(long, value_name = "K", requires = "temperature")]
    pub top_k: Option<NonZeroUsize>,
    /// Draw from the likeliest tokens that together reach probability P
    #[arg(long, value_name = "P", requires = "temperature", value_parser = probability)]
    pub top_p: Option<f32>,
    /// The same seed draws the same tokens [default: another one each time; --stats tells it]
    #[arg(long, value_name = "SEED", requires = "temperature")]
    pub seed: Option<u64>,
    /// `fp16` rounds what the packages declare as float16, as a device does; `f32` rounds nothing
    #[arg(long, value_name = "ARITHMETIC", default_value_t)]
    pub arithmetic: Arithmetic,
    /// Who runs the packages.
    #[command(flatten)]
    pub by: RunBy,
    /// Show tokens per second, time to the first token and peak memory
    #[arg(long)]
    pub stats: bool,
    /// Show how near the results of each op come to 65504, the largest float16, and which op overflowed first
    #[arg(long)]
    pub headroom: bool,
    /// With --headroom: show so many ops, the nearest first
    #[arg(long, value_name = "N", default_value = "20", requires = "headroom")]
    pub headroom_top: NonZeroUsize,
}

fn temperature(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value: &f32| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| "it must be a number from 0 up".to_owned())
}

fn probability(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value: &f32| *value > 0.0 && *value <= 1.0);
    value.ok_or_else(|| "it must be above 0 and at most 1".to_owned())
}

/// `anebake recipe`.
#[derive(Debug, Subcommand)]
pub enum Recipe {
    /// List the built-in recipes
    List,
    /// Print a recipe as it is written, or with all that it inherits
    Show(RecipeShow),
    /// Check a recipe file: keys, words, ranges, parents
    Check(RecipeCheck),
}

/// `anebake recipe show`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  anebake recipe show int8-v1 --origin --set weights.dtype=int4")]
pub struct RecipeShow {
    /// A built-in recipe or a TOML file
    #[arg(value_name = "NAME|FILE")]
    pub recipe: String,
    /// Override a recipe key, for instance `--set weights.dtype=int4`; may be repeated; implies --resolved
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// With everything that it inherits and every default
    #[arg(long)]
    pub resolved: bool,
    /// Say where each value comes from; implies --resolved
    #[arg(long)]
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
    /// Show where it is, entries, sizes, age and limits
    Stats,
    /// Hash everything again; damaged files are quarantined and baked anew by the next bake
    Verify,
    /// Remove what was not used for long, and what is more than fits
    Gc(CacheGc),
    /// Print the cache folder
    Path,
}

/// `anebake cache gc`.
#[derive(Debug, Args)]
#[command(
    after_help = "`convert` does this by itself, at most once a day, and spares what is younger than an hour. With a \
                        limit on the command line nothing is spared: end running bakes first."
)]
pub struct CacheGc {
    /// Keep at most this much, for instance `500MB` or `20GiB`; `0` empties the cache [default:
    /// $ANEBAKE_CACHE_MAX_SIZE, else 20GiB]
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<String>,
    /// Remove what was not used for this long, for instance `12h` or `30d` [default: $ANEBAKE_CACHE_MAX_AGE, else 30d]
    #[arg(long, value_name = "AGE")]
    pub max_age: Option<String>,
}

/// `anebake completions`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  anebake completions bash > ~/.local/share/bash-completion/completions/anebake")]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}
