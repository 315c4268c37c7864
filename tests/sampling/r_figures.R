# Figures of R's packages `sampling` (Tillé and Matei) and `survey` (Lumley), kept in
# tests/sampling/r_figures.json and compared in tests/sampling/test_r_figures.py:
#
#     Rscript tests/sampling/r_figures.R > tests/sampling/r_figures.json
#
# On Debian: apt-get install r-cran-sampling r-cran-survey.

suppressPackageStartupMessages({
  library(sampling)
  library(survey)
})

text <- function(x) paste0("[", paste(sprintf("%.15g", x), collapse = ", "), "]")
rows <- function(m) paste0("[", paste(apply(m, 1, text), collapse = ",\n    "), "]")
lines <- c()
put <- function(name, value) lines <<- c(lines, sprintf('  "%s": %s', name, value))

version <- function(package) as.character(packageVersion(package))
put("source", sprintf(
  '"R %s, sampling %s, survey %s"', getRversion(), version("sampling"), version("survey")
))

# The example of ?UPtillepi2, ?UPsampfordpi2 and ?UPsystematicpi2, that of ?UPmaxentropy, and more units.
examples <- list(
  help = c(0.2, 0.7, 0.8, 0.5, 0.4, 0.4),
  book = c(0.07, 0.17, 0.41, 0.61, 0.83, 0.91),
  many = inclusionprobabilities((1:12)^1.5, 5)
)
for (name in names(examples)) {
  pik <- examples[[name]]
  put(paste0(name, " inclusion"), text(pik))
  put(paste0(name, " Tille"), rows(UPtillepi2(pik)))
  put(paste0(name, " Sampford"), rows(UPsampfordpi2(pik)))
  put(paste0(name, " ConditionalPoisson"), rows(UPMEpik2frompikw(
    pik, (function(p) p / (1 - p))(UPMEpiktildefrompik(pik, eps = 1e-14))
  )))
  put(paste0(name, " Systematic"), rows(UPsystematicpi2(pik)))
}

# Sizes of which some are certain.
put("certain", text(inclusionprobabilities(c(1, 1, 2, 3, 40, 5, 9, 80), 4)))

# Twenty units, of which eight are drawn: estimates and their variances.
sizes <- (1:20)^1.3
pik <- inclusionprobabilities(sizes, 8)
drawn <- c(3, 6, 9, 11, 14, 16, 18, 20)
y <- 10 + sizes * (1 + sin(1:20) / 3)
put("inclusion", text(pik))
put("values", text(y))
put("drawn", text(drawn - 1))
joint <- UPsampfordpi2(pik)
inside <- joint[drawn, drawn]
put("HTestimator", sprintf("%.15g", HTestimator(y[drawn], pik[drawn])))
put("Hajekestimator", sprintf("%.15g", Hajekestimator(y[drawn], pik[drawn], 20, type = "total")))
put("varHT 1", sprintf("%.15g", varHT(y[drawn], inside, 1)))
put("varHT 2", sprintf("%.15g", varHT(y[drawn], inside, 2)))
put("varest", sprintf("%.15g", varest(y[drawn], pik = pik[drawn])))
put("vartaylor_ratio", sprintf("%.15g", vartaylor_ratio(y[drawn], rep(1, 8), inside)))

data <- data.frame(y = y[drawn], p = pik[drawn])
for (kind in c("HT", "YG")) {
  design <- svydesign(id = ~1, fpc = ~p, data = data, pps = ppsmat(inside), variance = kind)
  total <- svytotal(~y, design)
  put(paste("svytotal", kind), text(c(coef(total), SE(total))))
  mean <- svymean(~y, design)
  put(paste("svymean", kind), text(c(coef(mean), SE(mean))))
}
design <- svydesign(id = ~1, fpc = ~p, data = data, pps = "brewer")
total <- svytotal(~y, design)
put("svytotal brewer", text(c(coef(total), SE(total))))
put("confint brewer", text(confint(total, df = degf(design))))

# Equal probabilities in two strata, and clusters of two units.
strata <- rep(c(1, 2), c(12, 8))
equal <- c(2, 5, 7, 12, 13, 16, 20)
data <- data.frame(y = y[equal], s = strata[equal], size = c(12, 8)[strata[equal]])
total <- svytotal(~y, svydesign(id = ~1, strata = ~s, fpc = ~size, data = data))
put("equal", text(equal - 1))
put("svytotal strata", text(c(coef(total), SE(total))))
clusters <- (1:20 + 1) %/% 2
whole <- clusters %in% c(1, 4, 5, 9)
data <- data.frame(y = y[whole], c = clusters[whole], size = 10)
total <- svytotal(~y, svydesign(id = ~c, fpc = ~size, data = data))
put("whole", text(which(whole) - 1))
put("svytotal clusters", text(c(coef(total), SE(total))))

cat("{\n", paste(lines, collapse = ",\n"), "\n}\n", sep = "")
