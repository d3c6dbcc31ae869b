package simulate

import (
	"html/template"
	"io"

	"github.com/hopback/hopback/simulate"
)

// HTML writes one page that needs nothing else: the picture, the table, the
// verdict and where the numbers are from.
func HTML(out io.Writer, r *simulate.Report, words []string) error {
	return page.Execute(out, struct {
		Report  *simulate.Report
		Words   []string
		About   string
		Picture template.HTML
	}{r, words, describe(r.Scenario), template.HTML(drawing(r, nil))}) //nolint:gosec // our own SVG, its texts escaped
}

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"count": simulate.Count, "load": load, "span": simulate.Span,
}).Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Report.Scenario.Name}}: {{.Report.Scenario.About}}</title>
<style>
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: #1f2937; background: #fff; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
p.about { color: #5b6675; margin-top: .25rem; }
svg { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #d9dee5; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
li { margin: .25rem 0; }
dt { font-weight: 600; }
dd { color: #5b6675; margin: 0 0 .5rem 1rem; }
</style>
</head>
<body>
<h1>{{.Report.Scenario.Name}}</h1>
<p class="about">{{.Report.Scenario.About}}. {{.About}}</p>
{{with .Words}}<ul>{{range .}}<li>{{.}}</li>{{end}}</ul>{{end}}
{{.Picture}}
<div class="wide"><table>
<thead><tr><th>policy</th><th>handled</th><th>parked</th><th>needlessly</th><th>waiting</th><th>peak</th><th>p99</th><th>calls</th><th>wasted</th><th>99&nbsp;% gone</th><th>all gone</th><th>latency p50</th><th>p95</th><th>p99</th><th>most open</th><th>broker operations</th></tr></thead>
<tbody>{{range .Report.Results}}
<tr><td>{{.Contender.Name}}</td><td>{{count .Handled}}</td><td>{{count .Parked}}</td><td>{{count .ParkedNeedlessly}}</td><td>{{count .Waiting}}</td><td>{{load .Peak}}</td><td>{{load .P99}}</td><td>{{count .Calls}}</td><td>{{count .Wasted}}</td><td>{{span .Recovery99}}</td><td>{{span .Recovery}}</td><td>{{span .Latency.P50}}</td><td>{{span .Latency.P95}}</td><td>{{span .Latency.P99}}</td><td>{{count .WaitingMost}}</td><td>{{count .Operations.Total}}</td></tr>{{end}}
</tbody>
</table></div>
<h2>The policies</h2>
<dl>{{range .Report.Results}}
<dt>{{.Contender.Name}}</dt><dd>{{.Contender.Describe}}{{with .Contender.Source}}<br>Source: {{.}}{{end}}</dd>{{end}}
</dl>
<p class="about">Made with hopback simulate, seed {{.Report.Scenario.Seed}}. Peak and p99 are the calls within {{span .Report.Scenario.Window}} while the dependency was up, in multiples of its capacity. Needlessly parked messages would have succeeded later. A dash is what did not come about.</p>
</body>
</html>
`))
