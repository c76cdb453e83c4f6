//! Plots as SVG: lines over a continuous axis, drawn by `plotters`.

use anyhow::anyhow;
use plotters::prelude::*;

/// What is to be seen in a plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Below it, with the unit.
    pub x_label: String,
    /// Beside it, with the unit.
    pub y_label: String,
    /// The lines.
    pub series: Vec<Series>,
}

/// A line of a plot.
#[derive(Clone, Debug)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Width and height of a plot.
const SIZE: (u32, u32) = (760, 380);
/// Of this, what the legend has.
const LEGEND_WIDTH: u32 = 110;
/// The colors of lines, told apart by those who see few colors too (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 86, 86),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

impl Plot {
    /// The plot as an `svg` element. Both axes begin at 0.
    ///
    /// # Errors
    /// What `plotters` refuses; nothing is known that it would.
    pub fn to_svg(&self) -> anyhow::Result<String> {
        let mut svg = String::new();
        // Its errors borrow the drawing.
        self.draw(&mut svg).map_err(|error| anyhow!("plot {}: {error}", self.title))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let most = |values: &mut dyn Iterator<Item = f64>| match values.fold(0.0, f64::max) {
            most if most > 0.0 && most.is_finite() => most * 1.08,
            _ => 1.0,
        };
        let right = most(&mut points().map(|&(x, _)| x));
        let top = most(&mut points().map(|&(_, y)| y));
        let font = |size: u32| ("sans-serif", size).into_font();

        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(text)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, font(18))
            .margin(10)
            .margin_right(LEGEND_WIDTH)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..right, 0.0..top)
            .map_err(text)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .axis_desc_style(font(14))
            .label_style(font(13))
            .draw()
            .map_err(text)?;
        // The legend is beside the lines, which it would hide.
        let (mut y, x) = (40, SIZE.0 as i32 - LEGEND_WIDTH as i32 + 14);
        for (series, color) in self.series.iter().zip(COLORS.into_iter().cycle()) {
            let line = LineSeries::new(series.points.iter().copied(), color.stroke_width(2));
            chart.draw_series(line.point_size(4)).map_err(text)?;
            let mark = Rectangle::new([(x, y), (x + 14, y + 8)], color.filled());
            area.draw(&mark).map_err(text)?;
            area.draw(&Text::new(series.name.as_str(), (x + 20, y - 3), font(14))).map_err(text)?;
            y += 20;
        }
        area.present().map_err(text)?;
        Ok(())
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> Plot {
        let series = vec![Series { name: "one <line>".into(), points }];
        Plot { title: "a & b".into(), x_label: "x".into(), y_label: "y".into(), series }
    }

    #[test]
    fn plot_is_one_element_with_its_names() {
        let svg = plot(vec![(1.0, 2.0), (2.0, 1.0)]).to_svg().unwrap();
        assert_eq!((svg.matches("<svg ").count(), svg.matches("</svg>").count()), (1, 1));
        assert!(svg.contains("a &amp; b") && svg.contains("one &lt;line&gt;"), "{svg}");
        assert_eq!(svg.matches("<circle ").count(), 2);
        assert!(!svg.contains("href"), "nothing is loaded from elsewhere");
    }

    #[test]
    fn plot_of_nothing_is_drawn() {
        for points in [vec![], vec![(0.0, 0.0)], vec![(1.0, f64::INFINITY)]] {
            assert!(plot(points).to_svg().unwrap().contains("</svg>"));
        }
    }
}
