//! What a machine's answers mean for a bake.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{About, Group};

/// What became of a rung on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It was not run.
    Unasked,
    /// It was not compiled, not loaded, or did not run.
    Failed,
    /// It ran and gave wrong numbers.
    Wrong,
    /// It gave the right numbers; Core ML's plan prefers another device for some op, or says nothing of it.
    Mixed,
    /// It gave the right numbers, and the plan prefers the Neural Engine for every op.
    Ane,
}

impl Answer {
    /// The words for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unasked => "not run",
            Self::Failed => "failed",
            Self::Wrong => "wrong numbers",
            Self::Mixed => "right, not all planned for the ANE",
            Self::Ane => "right, all planned for the ANE",
        }
    }

    fn is_right(self) -> bool {
        self >= Self::Mixed
    }
}

/// Which recipe to bake by, and what it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recommendation {
    /// A built-in recipe.
    pub recipe: String,
    /// Least rows of a function, where the recipe has another: `package.query`.
    pub query: Option<usize>,
    /// Most blocks in one package that were planned for the Neural Engine as a whole; bakes hold one.
    pub blocks: usize,
    /// Whether everything that it rests on was planned for the Neural Engine as a whole.
    pub all_on_ane: bool,
}

impl fmt::Display for Recommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "anebake convert --recipe {}", self.recipe)?;
        match self.query {
            Some(query) => write!(f, " --set package.query={query}"),
            None => Ok(()),
        }
    }
}

/// Cache variants, the one that copies least first, and the recipes that have them: int8, float16, and the rows of
/// their smallest function.
const VARIANTS: [(&str, [&str; 2], usize); 3] = [
    ("mask", ["int8-ane-v1", "fp16-ane-v1"], 4),
    ("slice", ["int8-v1", "fp16-v1"], 1),
    ("io", ["int8-io-v1", "fp16-io-v1"], 4),
];

/// The rung that stands for int8 weights.
const INT8: &str = "weights-int8-per-channel";

/// The best recipe by what the rungs answered; none where no whole block gave the right numbers.
pub fn recommend(answers: &[(&About, Answer)]) -> Option<Recommendation> {
    let answer =
        |id: &str| answers.iter().find(|(about, _)| about.id == id).map_or(Answer::Unasked, |(_, answer)| *answer);
    let block = |kv: &str| answer(&format!("block-{kv}"));
    // Of equals the first.
    let (kv, recipes, rows) =
        VARIANTS.into_iter().rev().max_by_key(|(kv, ..)| block(kv)).filter(|(kv, ..)| block(kv).is_right())?;
    let int8 = answer(INT8);
    // Numbers come first; then int8 halves what is read, unless it leaves the Neural Engine.
    let is_int8 = int8.is_right() && int8 >= block("stateless");
    let rungs = |group: Group| answers.iter().filter(move |(about, _)| about.group == group);
    let fits = |(about, answer): &&(&About, Answer)| {
        about.kv.as_deref() == Some("mask") && about.blocks == 1 && *answer >= block(kv)
    };
    let widths = rungs(Group::Query).chain(rungs(Group::Block)).filter(fits).map(|(about, _)| about.rows);
    let query = match answer("query-1") {
        Answer::Unasked => None,
        _ => widths.min(),
    };
    let stacked =
        rungs(Group::Stack).filter(|(about, answer)| about.kv.as_deref() == Some(kv) && *answer == Answer::Ane);
    Some(Recommendation {
        recipe: recipes[usize::from(!is_int8)].to_owned(),
        query: query.filter(|query| *query != rows),
        blocks: stacked.map(|(about, _)| about.blocks).max().unwrap_or(1),
        all_on_ane: block(kv) == Answer::Ane && (!is_int8 || int8 == Answer::Ane),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ladder in which every rung but those listed answers `others`.
    fn recommended(others: Answer, listed: &[(&str, Answer)]) -> Option<Recommendation> {
        let about = |id: &str, group, kv: Option<&str>, blocks, rows| About {
            id: id.to_owned(),
            group,
            asks: String::new(),
            target: "macOS15".to_owned(),
            weights: "float16".to_owned(),
            kv: kv.map(str::to_owned),
            blocks,
            rows,
        };
        let ladder = [
            about("rms-norm", Group::Op, None, 1, 4),
            about("block-stateless", Group::Block, None, 1, 4),
            about("block-io", Group::Block, Some("io"), 1, 4),
            about("block-mask", Group::Block, Some("mask"), 1, 4),
            about("block-slice", Group::Block, Some("slice"), 1, 4),
            about("query-1", Group::Query, Some("mask"), 1, 1),
            about("query-2", Group::Query, Some("mask"), 1, 2),
            about("query-8", Group::Query, Some("mask"), 1, 8),
            about(INT8, Group::Weights, None, 1, 4),
            about("stack-2", Group::Stack, Some("mask"), 2, 4),
            about("stack-28", Group::Stack, Some("mask"), 28, 4),
            about("stack-io-28", Group::Stack, Some("io"), 28, 4),
        ];
        assert!(listed.iter().all(|(id, _)| ladder.iter().any(|about| about.id == *id)));
        let answer =
            |about: &About| listed.iter().find(|(id, _)| *id == about.id).map_or(others, |(_, answer)| *answer);
        let answers: Vec<(&About, Answer)> = ladder.iter().map(|about| (about, answer(about))).collect();
        recommend(&answers)
    }

    #[test]
    fn a_machine_that_takes_everything_is_told_the_mask_recipe_in_int8_with_one_row() {
        let found = recommended(Answer::Ane, &[]).unwrap();
        assert_eq!(
            (found.to_string().as_str(), found.blocks, found.all_on_ane),
            ("anebake convert --recipe int8-ane-v1 --set package.query=1", 28, true)
        );
    }

    #[test]
    fn one_that_refuses_short_queries_keeps_the_recipes_four_rows() {
        let found = recommended(Answer::Ane, &[("query-1", Answer::Failed), ("query-2", Answer::Failed)]).unwrap();
        assert_eq!(found.to_string(), "anebake convert --recipe int8-ane-v1");
    }

    #[test]
    fn one_that_takes_no_states_is_told_to_keep_the_cache_outside() {
        let found =
            recommended(Answer::Ane, &[("block-mask", Answer::Failed), ("block-slice", Answer::Failed)]).unwrap();
        assert_eq!(found.recipe, "int8-io-v1");
        let found = recommended(Answer::Ane, &[("block-mask", Answer::Mixed), ("block-slice", Answer::Wrong)]).unwrap();
        assert_eq!(found.recipe, "int8-io-v1");
    }

    #[test]
    fn int8_that_leaves_the_neural_engine_or_is_wrong_is_not_recommended() {
        for int8 in [Answer::Mixed, Answer::Wrong, Answer::Failed, Answer::Unasked] {
            let found = recommended(Answer::Ane, &[(INT8, int8)]).unwrap();
            assert_eq!((found.recipe.as_str(), found.all_on_ane), ("fp16-ane-v1", true), "{int8:?}");
        }
    }

    #[test]
    fn where_nothing_is_planned_for_the_neural_engine_as_a_whole_that_is_said() {
        let found = recommended(Answer::Mixed, &[]).unwrap();
        assert_eq!((found.recipe.as_str(), found.all_on_ane, found.blocks), ("int8-ane-v1", false, 1));
    }

    #[test]
    fn where_no_block_is_right_nothing_is_recommended() {
        for answer in [Answer::Unasked, Answer::Failed, Answer::Wrong] {
            assert_eq!(recommended(answer, &[("rms-norm", Answer::Ane)]), None);
        }
    }
}
