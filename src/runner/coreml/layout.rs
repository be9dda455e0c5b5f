//! Where the elements of an array lie in memory.

use std::ops::Range;

/// Shape and strides, both in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Shape.
    pub shape: Vec<usize>,
    /// Elements from one index of an axis to the next.
    pub strides: Vec<usize>,
}

impl Layout {
    /// Number of elements, padding excluded.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements from the first to behind the last, padding between them included; `None` where there are too many or
    /// shape and strides do not match.
    pub fn span(&self) -> Option<usize> {
        if self.shape.len() != self.strides.len() {
            return None;
        }
        if self.shape.contains(&0) {
            return Some(0);
        }
        let last = self
            .shape
            .iter()
            .zip(&self.strides)
            .try_fold(0usize, |last, (size, stride)| last.checked_add((size - 1).checked_mul(*stride)?))?;
        last.checked_add(1)
    }

    /// Where each run of elements along the last axis begins, in row-major order.
    fn starts(&self) -> impl Iterator<Item = usize> {
        let outer = self.shape.len().saturating_sub(1);
        let rows: usize = self.shape[..outer].iter().product();
        (0..rows).map(move |row| {
            let mut rest = row;
            let mut start = 0;
            for axis in (0..outer).rev() {
                start += rest % self.shape[axis] * self.strides[axis];
                rest /= self.shape[axis];
            }
            start
        })
    }

    /// Calls `visit` with pieces of a row-major array and where they lie: `range` of the array is at `first`,
    /// `first + step`, … in memory.
    pub fn pieces(&self, mut visit: impl FnMut(Range<usize>, usize, usize)) {
        let (length, step) = match (self.shape.last(), self.strides.last()) {
            (Some(&length), Some(&step)) => (length, step),
            _ => (1, 1),
        };
        for (row, start) in self.starts().enumerate() {
            visit(row * length..(row + 1) * length, start, step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(layout: &Layout) -> Vec<usize> {
        let mut found = Vec::new();
        layout.pieces(|range, first, step| {
            assert_eq!(range.start, found.len());
            found.extend(range.enumerate().map(|(index, _)| first + index * step));
        });
        found
    }

    #[test]
    fn padded_rows_and_transposed_axes_are_found_in_row_major_order() {
        let padded = Layout { shape: vec![1, 2, 3], strides: vec![64, 32, 1] };
        assert_eq!(gathered(&padded), [0, 1, 2, 32, 33, 34]);
        assert_eq!((padded.count(), padded.span()), (6, Some(35)));
        let transposed = Layout { shape: vec![2, 3], strides: vec![1, 2] };
        assert_eq!(gathered(&transposed), [0, 2, 4, 1, 3, 5]);
        let singleton = Layout { shape: vec![1], strides: vec![1] };
        assert_eq!((gathered(&singleton), singleton.span()), (vec![0], Some(1)));
    }

    #[test]
    fn empty_and_absurd_arrays_have_no_elements_or_no_span() {
        assert_eq!(Layout { shape: vec![2, 0], strides: vec![1, 1] }.span(), Some(0));
        assert!(gathered(&Layout { shape: vec![2, 0], strides: vec![1, 1] }).is_empty());
        assert_eq!(Layout { shape: vec![2, 2], strides: vec![usize::MAX, 1] }.span(), None);
        assert_eq!(Layout { shape: vec![2], strides: vec![] }.span(), None);
        let scalar = Layout { shape: vec![], strides: vec![] };
        assert_eq!((gathered(&scalar), scalar.span()), (vec![0], Some(1)));
    }
}
