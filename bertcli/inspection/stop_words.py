"""Words of several languages that say nothing about a topic: cluster labels omit them."""

STOP_WORDS = frozenset(
    """
    a about above after again against all also am an and any are aren as at be because been before
    being below between both but by can cannot could did didn do does doesn doing don down during
    each even few for from further get gets got had has have having he her here hers him himself his
    how however i if in into is isn it its itself just ll may me might more most much must my myself
    no nor not now of off on once only or other our ours out over own re s same shall she should so
    some such t than that the their theirs them then there these they this those through to too
    under until up upon us ve very was wasn we were what when where whether which while who whom
    whose why will with within without won would yet you your yours

    aber alle als also am an auch auf aus bei beim bin bis bist da damit dann das dass dein dem den
    der des die dies diese dieser doch dort durch ein eine einem einen einer eines er es euer eure
    für gegen hab habe haben hat hatte hier hin ich ihm ihn ihr ihre im in ist ja jede jeder kann
    kein keine können man mehr mein mit muss nach nicht noch nur ob oder ohne schon sehr sein seine
    sich sie sind so über um und uns unser unter vom von vor war waren was weil wenn wer werden wie
    wir wird wo zu zum zur zwischen

    au aux avec ce ces cette comme dans de des du elle elles en est et être eux il ils je la le les
    leur leurs lui ma mais me même mes moi mon ne nos notre nous on ont ou où par pas plus pour qu
    que qui sa sans se sera ses si son sont sous sur ta te tes toi ton tu un une vos votre vous été

    al algo como con contra cual cuando de del desde donde el ella ellos en entre era es esa ese eso
    esta este esto está están fue ha hay la las le les lo los más me mi muy nada ni no nos nosotros
    o para pero por porque que quien se ser si sin sobre son su sus también te tiene todo tu un una
    uno y ya yo

    ai al alla alle anche che chi ci come con da dal dalla dei del della delle di dove e ed era gli
    ha hanno ho il io la le lei lo loro lui ma mi mio ne nei nel nella noi non per perché più quando
    questa questo se sei si sia sono su sua sul sulla suo tra tu un una uno vi voi è

    ao aos as até com da das de do dos e ela elas ele eles em entre era essa esse esta este eu foi
    há isso já lhe mais mas me mesmo meu minha muito na nas não nem no nos nós o os ou para pela
    pelo por qual quando que quem se sem ser seu sua são só também te tem um uma você

    aan al als bij dan dat de den der deze die dit doch door dus een en er ge geen had heb hebben
    heeft het hij hoe hun ik in is ja je kan maar me met mij mijn naar niet nog nu of om omdat onder
    ons ook op over te tegen toch toen tot u uit uw van veel voor want waren was wat we wel werd wie
    wij worden zal ze zich zij zijn zo zonder zou
    """.split()  # noqa: SIM905 - lists that are read by language
)
